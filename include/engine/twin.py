"""A full refresh from the source itself, for rows that no stored table could be asked for again.

The table's twin, filled beside it by the ordinary stream code under a checkpoint of its own that begins with the
source. In the table's window the twin reads on to the end; then the table takes over its rows and columns in one
commit, and each flow goes on in a new generation where the twin stands. Until that commit the old table serves.
"""

import json
import shutil
import time
from contextlib import suppress
from dataclasses import asdict, replace
from functools import reduce
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.control.backfills import Backfill
from include.engine import batch, checkpoint, commit, generation, slices, storage
from include.engine.commit import Stamp, txn_app_id
from include.engine.window import Worker
from include.errors import Broken, FlowFailed, UsageError
from include.ledger import beginning, forgotten, landing, planned, position
from include.ledger import checkpoint as ledger
from include.ledger.batches import BACKFILL
from include.ledger.beginning import Beginning
from include.ledger.log import Commit, Log
from include.settings import settings
from include.spec import Delta, Files, Kafka, Table

# What comes to the source meanwhile is read before the window as well, until that takes no longer than this.
SHORT_SECONDS = 30
MOST_TURNS = 5
APPEND_ONLY = "delta.appendOnly"
# The one batch of a new generation that the twin has read.
SEED = 0


def of(table: Table) -> Table:
    return replace(table, name=f"twin.{table.name.replace('.', '_')}")


def lease(table: Table) -> str:
    """Of the job that makes all of the table again: two would fill one twin."""
    return f"full refresh {table.name}"


def is_there(table: Table) -> bool:
    return settings().is_stored(of(table).name)


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
        was, now = planned.owner(home / str(newest)), beginning.identity(flow)
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
        storage.create_quarantine(own.spark, twin, own.spark.sql)
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
    return {one["sha256"] for one in planned.owner(home / str(newest))["definitions"]} == {checkpoint.fingerprint(flow)}


def drop(spark: SparkSession, table: Table) -> None:
    """The checkpoints first, so that a kill leaves nothing that looks whole."""
    twin = of(table)
    for flow in twin.flows:
        shutil.rmtree(settings().checkpoints(flow.flow), ignore_errors=True)
    for name in (twin.name, twin.quarantine):
        shutil.rmtree(settings().table_path(name), ignore_errors=True)
    # It remembers the table of a path.
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def put_in_place(own: Worker, table: Table, one: Backfill, stamp: dict[str, Any]) -> None:
    """In the window, with the leases of its flows: let the table hold what the twin does. `settle` does the rest."""
    spark, path = own.spark, settings().table_path(table.name)
    forget(table)
    if isinstance(table.source, Files):
        forgotten.files(table, forgotten.names(of(table).name))
    stamps = {flow.flow: _begin(own, flow, of(flow)) for flow in table.flows}
    if settings().is_stored(of(table).quarantine):
        if not settings().is_stored(table.quarantine):
            storage.create_quarantine(spark, table, spark.sql)
        _add_to_quarantine(spark, table, stamps, stamp)
    if DeltaTable(str(path)).metadata().configuration.get(APPEND_ONLY) == "true":
        spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('{APPEND_ONLY}' = 'false')")
    rows = _stored(spark, of(table).name)
    counts = {"rows_before": _stored(spark, table.name).count(), "rows_after": rows.count()}
    said = {**slices.said(one, **counts), "anew": stamps}
    with commit.stamped(spark, {**stamp, BACKFILL: said}, commit.once(slices.txn_app_id(one), 1)):
        writer = batch.in_few_files(rows, counts["rows_after"]).write.format("delta").mode("overwrite")
        writer = writer.partitionBy(*table.partition_by) if table.partition_by else writer
        writer.option("overwriteSchema", "true").save(str(path))


def settle(spark: SparkSession, table: Table, made: Commit) -> None:
    """Behind that commit, as often as it takes: each flow's own, without which its new generation does not start.

    Nothing is left to do of a commit that made a range again.
    """
    stamps = made.metadata[BACKFILL].get("anew")
    if not stamps:
        return
    if settings().is_stored(table.quarantine):
        path = settings().table_path(table.quarantine)
        with commit.stamped(spark, {BACKFILL: {"key": made.metadata[BACKFILL]["key"]}}, {}):
            spark.sql(f"DELETE FROM delta.`{path}` WHERE NOT ({_of_new_generations(stamps)})")
    for stamp in stamps.values():
        _commit_seed(spark, table, stamp)
    # It is append-only again, and what its file says of it holds.
    storage.create(spark, table)


def _commit_seed(spark: SparkSession, table: Table, stamp: dict[str, Any]) -> None:
    with commit.stamped(spark, stamp, commit.once(txn_app_id(stamp["flow"], stamp["generation"]), SEED)):
        commit.append(_stored(spark, table.name).limit(0), table)


def forget(table: Table) -> None:
    """Take back the generations that an earlier try has begun and no commit stands for: their flows cannot start."""
    for flow in table.flows:
        home = settings().checkpoints(flow.flow)
        number = ledger.newest_generation(home)
        if number is None or number == _newest_told(flow):
            continue
        with suppress(Broken):
            if planned.owner(home / str(number)).get("after") == [number, SEED]:
                shutil.rmtree(home / f"{number}.new", ignore_errors=True)
                (home / str(number)).rename(home / f"{number}.new")


def _newest_told(flow: Table) -> int | None:
    """The newest generation of which a commit of the table tells; None without one."""
    for made in Log(settings().table_path(flow.name)).commits():
        stamps = (made.metadata.get(BACKFILL) or {}).get("anew") or {made.metadata.get("flow"): made.metadata}
        if flow.flow in stamps:
            return int(stamps[flow.flow]["generation"])
    return None


def _begin(own: Worker, flow: Table, twin: Table) -> dict[str, Any]:
    """A new generation of the flow, behind what its twin has read; returns the stamp of the commit it waits for."""
    checkpoints = settings().checkpoints(twin.flow)
    read = checkpoints / str(ledger.newest_generation(checkpoints))
    last, owner = ledger.last_committed(read), planned.owner(read)
    begins = planned.begins(read) if isinstance(twin.source, Kafka) else None
    end = begins if last is None else ledger.end_offset(read, last)
    if end is None:
        raise FlowFailed(f"{flow.flow}: its source holds nothing, so nothing was replaced: see what became of it")
    held = tuple(landing.taken(read, end)) if isinstance(twin.source, Files) else ()
    to = {"logOffset": 0} if held else end
    home, before = settings().checkpoints(flow.flow), beginning.last_stamp(flow)
    number = max(ledger.newest_generation(home) or 0, before["generation"] if before else 0) + 1
    partitions = str(own.spark.conf.get("spark.sql.shuffle.partitions"))
    identity = {"flow": flow.flow, "source": owner["source"], "write": owner["write"]}
    generation.begin(home, number, identity, Beginning(to, (number, SEED), files=held), partitions)
    newest = (beginning.last_stamp(twin) or {}).get("newest")
    stamp = Stamp(flow.flow, number, SEED, own.keeper.epoch(flow.flow), owner["source"], begins, to, newest=newest)
    return asdict(stamp)


def _add_to_quarantine(spark: SparkSession, table: Table, stamps: dict[str, Any], stamp: dict[str, Any]) -> None:
    """Beside its old rows, which count until the table is another: in place of what an earlier try has added."""
    rows = _stored(spark, of(table).quarantine)
    flows = {of(flow).flow: stamps[flow.flow] for flow in table.flows}
    parts = [_as_of(rows.filter(F.col("_flow") == name), found) for name, found in flows.items()]
    writer = reduce(DataFrame.unionByName, parts).coalesce(1).write.format("delta").mode("overwrite")
    kinds = {field.name: field.dataType for field in _stored(spark, table.quarantine).schema}
    if all(kinds.get(field.name, field.dataType) == field.dataType for field in rows.schema):
        writer = writer.option("replaceWhere", _of_new_generations(stamps)).option("mergeSchema", "true")
    else:
        # Rows of both kinds have no place in one table.
        writer = writer.option("overwriteSchema", "true")
    with commit.stamped(spark, {**stamp, BACKFILL: {}}, {}):
        writer.save(str(settings().table_path(table.quarantine)))


def _as_of(rows: DataFrame, stamp: dict[str, Any]) -> DataFrame:
    values = {"_flow": stamp["flow"], "_generation": stamp["generation"], "_source": json.dumps(stamp["source_to"])}
    columns = {name: F.lit(value) for name, value in values.items()}
    return rows.withColumns({**columns, "_batch": F.lit(SEED).cast("bigint")})


def _of_new_generations(stamps: dict[str, Any]) -> str:
    return " OR ".join(f"_flow = '{flow}' AND _generation >= {one['generation']}" for flow, one in stamps.items())


def _stored(spark: SparkSession, name: str) -> DataFrame:
    return spark.read.format("delta").load(str(settings().table_path(name)))
