"""A full refresh from the source itself, for rows that no stored table could be asked for again.

The table's twin, filled beside it by the ordinary stream code under a checkpoint of its own that begins with the
source. In the table's window the twin reads on to the end; then the table takes over its rows and columns in one
commit, and each flow goes on in a new generation where the twin stands. Until that commit the old table serves.
"""

import shutil
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from include.engine.checkpoints import definition
from include.engine.jobs.window import Worker
from include.engine.tables import create_table
from include.errors import Broken, UsageError
from include.readers import checkpoint as ledger
from include.readers import offset_log, position, resume_position
from include.settings import settings
from include.spec import Delta, Files, Table

# What comes to the source meanwhile is read before the window as well, until that takes no longer than this.
SHORT_SECONDS = 30
MOST_TURNS = 5


def of(table: Table) -> Table:
    return replace(table, name=f"twin.{table.name.replace('.', '_')}")


def lease(table: Table) -> str:
    """Of the job that makes all of the table again: two would fill one twin."""
    return f"full refresh {table.name}"


def places(table: Table) -> list[Path]:
    """All that there is of it, the checkpoints first, so that no kill leaves anything that looks whole."""
    twin = of(table)
    checkpoints = [settings().checkpoints(flow.flow) for flow in twin.flows]
    return [*checkpoints, *map(settings().table_path, (twin.name, twin.quarantine))]


def is_needed(spark: SparkSession, table: Table) -> bool:
    """Whether its rows cannot be made of what its flows have read, or do not fit into what is stored."""
    return not all(isinstance(flow.source, Delta) and can_go_on(spark, flow) for flow in table.flows)


def can_go_on(spark: SparkSession, flow: Table) -> bool:
    """Whether its file declares what Spark can continue from."""
    return not (_is_stored_otherwise(spark, flow) or _is_another_flow(flow))


def _is_stored_otherwise(spark: SparkSession, table: Table) -> bool:
    """Whether `storage.create` could not bring what is stored to what is declared."""
    stored = spark.read.format("delta").load(str(settings().table_path(table.name))).schema
    declared = {field.name: field.dataType for field in StructType.fromDDL(table.schema)}
    partitioned = DeltaTable(str(settings().table_path(table.name))).metadata().partition_columns
    return partitioned != list(table.partition_by) or any(declared.get(one.name) != one.dataType for one in stored)


def _is_another_flow(flow: Table) -> bool:
    """Whether Spark could not go on from its checkpoint."""
    home = settings().checkpoints(flow.flow)
    newest = ledger.newest_generation(home)
    # A damaged one does not say; the rows are those of the table's own commits.
    with suppress(Broken):
        was, now = offset_log.owner(home / str(newest)), resume_position.identity(flow)
        return any(was.get(key) != value for key, value in now.items())
    return False


def fill(own: Worker, table: Table) -> None:
    """Before the window: read all that the source holds. What an earlier try has read by today's definition stays.

    Raises UsageError where a reader could not follow.
    """
    twin = of(table)
    if not isinstance(table.source, Files) and _is_stored_otherwise(own.spark, table):
        _require_no_feed(own, table)
    if not all(_is_of_today(flow) for flow in twin.flows):
        drop(own.spark, table)
    if settings().is_stored(table.quarantine):
        create_table.create_quarantine(own.spark, twin, own.spark.sql)
    for _ in range(MOST_TURNS):
        began = time.monotonic()
        read_on(own, table)
        if time.monotonic() - began < SHORT_SECONDS:
            return


def _require_no_feed(own: Worker, table: Table) -> None:
    for flow in own.tables.flows.values():
        source = flow.source
        reads = isinstance(source, Delta) and source.changes and source.table == table.name
        if reads and position.of(flow.flow):
            raise UsageError(
                f"{table.name} cannot be refreshed: its columns are others now, and {flow.flow} reads its changes, "
                f"which end there: give the new one a name of its own"
            )


def read_on(own: Worker, table: Table) -> None:
    for flow in of(table).flows:
        own.keeper.take([flow.flow])
        own.host.run_once([flow])


def _is_of_today(flow: Table) -> bool:
    home = settings().checkpoints(flow.flow)
    newest = ledger.newest_generation(home)
    if newest is None:
        return False
    return {one["sha256"] for one in offset_log.owner(home / str(newest))["definitions"]} == {
        definition.fingerprint(flow)
    }


def drop(spark: SparkSession, table: Table) -> None:
    for place in places(table):
        shutil.rmtree(place, ignore_errors=True)
    # It remembers the table of a path.
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
