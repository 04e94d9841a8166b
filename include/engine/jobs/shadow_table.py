"""Full refresh of a table from its source, for rows that no stored table holds.

The ordinary stream code fills a shadow table next to the old one. Its checkpoint begins at the start of the source. In
the table's window the shadow table reads to the end. Then one commit puts its rows and columns into the table. Each
flow goes on in a new generation from the shadow table's position. Until that commit readers see the old rows.
"""

import time
from contextlib import suppress
from dataclasses import replace

from pyspark.sql import SparkSession

from include.checkpoints import checkpoint_files
from include.delta import stored_table
from include.engine import struct_type
from include.engine.checkpoints import definition
from include.engine.jobs.window import Worker
from include.engine.session import jvm_of
from include.engine.tables import create_table
from include.engine.tables.read_table import read_table
from include.errors import FlowBroken, UsageError
from include.flows import resume_position
from include.lake.paths import LakePath, remove_tree
from include.settings import settings
from include.spec import Delta, Files, Table

# Before the window, rows that arrive during a round are read by another, until a round is shorter than this.
SHORT_SECONDS = 30
MOST_ROUNDS = 5


def shadow_of(table: Table) -> Table:
    """Returns the shadow table of `table`."""
    return replace(table, name=f"twin.{table.name.replace('.', '_')}")


def lease(table: Table) -> str:
    """Names the lease of a full refresh: two jobs would fill the same shadow table."""
    return f"full refresh {table.name}"


def places(table: Table) -> list[LakePath]:
    """Returns all directories of the shadow table. The checkpoints come first: a kill while they are deleted leaves no
    shadow table that looks complete.
    """
    shadow = shadow_of(table)
    checkpoints = [settings().checkpoints(flow.flow) for flow in shadow.flows]
    return [*checkpoints, *map(settings().table_path, (shadow.name, shadow.quarantine, shadow.retained))]


def is_needed(spark: SparkSession, table: Table) -> bool:
    """Whether the rows cannot be computed from stored tables, or do not fit into the stored columns."""
    return not all(isinstance(flow.source, Delta) and can_go_on(spark, flow) for flow in table.flows)


def can_go_on(spark: SparkSession, flow: Table) -> bool:
    """Whether Spark can continue from the flow's checkpoint with its present declaration."""
    return not (_is_stored_otherwise(spark, flow) or _is_another_flow(flow))


def _is_stored_otherwise(spark: SparkSession, table: Table) -> bool:
    """Whether `create_table.create` cannot bring stored columns and partitions to the declaration.

    A companion may have columns of its own. A restored one may hold another type of a column than its table.
    """
    declared_types = {field.name: field.dataType for field in struct_type.from_ddl(table.schema)}
    partition_columns = stored_table.open_table(table.name).metadata().partition_columns
    companions = [name for name in (table.quarantine, table.retained) if settings().is_stored(name)]
    return (
        partition_columns != list(table.partition_by)
        or any(declared_types.get(field.name) != field.dataType for field in read_table(spark, table.name).schema)
        or any(
            declared_types.get(field.name, field.dataType) != field.dataType
            for name in companions
            for field in read_table(spark, name).schema
        )
    )


def _is_another_flow(flow: Table) -> bool:
    """Whether the checkpoint's `owner.json` names another source or write mode than the declaration."""
    home = settings().checkpoints(flow.flow)
    newest = checkpoint_files.newest_generation(home)
    # A damaged `owner.json` names neither; the flow then resumes from the table's own commits.
    with suppress(FlowBroken):
        owner, identity = checkpoint_files.owner(home / str(newest)), resume_position.identity(flow)
        return any(owner.get(key) != value for key, value in identity.items())
    return False


def fill(worker: Worker, table: Table) -> None:
    """Reads all that the source holds into the shadow table, before the window. Keeps rows of an earlier try with the
    same definition.

    Raises UsageError if a reader of the table's change feed could not follow.
    """
    shadow = shadow_of(table)
    if not isinstance(table.source, Files) and _is_stored_otherwise(worker.spark, table):
        _require_no_feed_readers(worker, table)
    if not all(_is_current(flow) for flow in shadow.flows):
        drop(worker.spark, table)
    if settings().is_stored(table.quarantine):
        create_table.create_quarantine(worker.spark, shadow, worker.spark.sql)
    for _ in range(MOST_ROUNDS):
        began_at = time.monotonic()
        read_to_end(worker, table)
        if time.monotonic() - began_at < SHORT_SECONDS:
            return


def _require_no_feed_readers(worker: Worker, table: Table) -> None:
    for flow in worker.tables.flows.values():
        source = flow.source
        reads_feed = isinstance(source, Delta) and source.changes and source.table == table.name
        if reads_feed and checkpoint_files.position_of(flow.flow):
            raise UsageError(
                f"{table.name} cannot be refreshed: its columns are others now, and {flow.flow} reads its changes, "
                f"which end there: give the new one a name of its own"
            )


def read_to_end(worker: Worker, table: Table) -> None:
    """Lets each flow of the shadow table read its source to the end."""
    for flow in shadow_of(table).flows:
        worker.renewer.take([flow.flow])
        worker.host.run_once([flow])


def _is_current(flow: Table) -> bool:
    """Whether today's definition, and no other, has written the checkpoint."""
    home = settings().checkpoints(flow.flow)
    newest = checkpoint_files.newest_generation(home)
    if newest is None:
        return False
    return {entry["sha256"] for entry in checkpoint_files.owner(home / str(newest))["definitions"]} == {
        definition.fingerprint(flow)
    }


def drop(spark: SparkSession, table: Table) -> None:
    """Deletes the shadow table and its checkpoints."""
    for path in places(table):
        remove_tree(path)
    # DeltaLog caches tables by path.
    jvm_of(spark).org.apache.spark.sql.delta.DeltaLog.clearCache()
