"""A table takes over what its twin holds, in one commit, and each of its flows goes on behind that.

Each flow's new generation is begun first. It waits for a commit of its own, its batch 0, so that nobody starts the flow
in between: it would leave rows out, or double them. Whatever kills the job, the commit says what is left to do.
"""

from dataclasses import asdict
from functools import reduce
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.control.jobs.backfills import Backfill
from include.engine.batch import table_rows
from include.engine.checkpoints import generation
from include.engine.jobs import backfill_rows, shadow_table
from include.engine.jobs.window import Worker
from include.engine.tables import commit, create_table
from include.engine.tables.commit import CommitMetadata, txn_app_id
from include.errors import FlowFailed
from include.readers import checkpoint as ledger
from include.readers import landing_folder, offset_log, resume_position
from include.readers.batches import BACKFILL
from include.readers.delta_log import Commit
from include.readers.resume_position import Beginning
from include.recovery import backfills, lost_on_refresh, unseeded_generations
from include.recovery.unseeded_generations import SEED
from include.settings import settings
from include.spec import Files, Kafka, Table

APPEND_ONLY = "delta.appendOnly"


def put_in_place(own: Worker, table: Table, one: Backfill, stamp: dict[str, Any]) -> None:
    """In the window, with the leases of its flows: let the table hold what the twin does. `settle` does the rest."""
    spark, path = own.spark, settings().table_path(table.name)
    unseeded_generations.forget(table)
    if isinstance(table.source, Files):
        lost_on_refresh.files(table, lost_on_refresh.names(shadow_table.of(table).name))
    stamps = {flow.flow: _begin(own, flow, shadow_table.of(flow)) for flow in table.flows}
    if settings().is_stored(shadow_table.of(table).quarantine):
        if not settings().is_stored(table.quarantine):
            create_table.create_quarantine(spark, table, spark.sql)
        _add_to_quarantine(spark, table, stamps, stamp)
    if DeltaTable(str(path)).metadata().configuration.get(APPEND_ONLY) == "true":
        spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('{APPEND_ONLY}' = 'false')")
    rows = _stored(spark, shadow_table.of(table).name)
    said = {**backfill_rows.said(one, _stored(spark, table.name).count()), "anew": stamps}
    with commit.stamped(spark, {**stamp, BACKFILL: said}, commit.once(backfills.txn_app_id(one), 1)):
        writer = table_rows.in_few_files(rows, rows.count()).write.format("delta").mode("overwrite")
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
    create_table.create(spark, table)


def _commit_seed(spark: SparkSession, table: Table, stamp: dict[str, Any]) -> None:
    with commit.stamped(spark, stamp, commit.once(txn_app_id(stamp["flow"], stamp["generation"]), SEED)):
        commit.append(_stored(spark, table.name).limit(0), table)


def _begin(own: Worker, flow: Table, beside: Table) -> dict[str, Any]:
    """A new generation of the flow, behind what its twin has read; returns the stamp of the commit it waits for."""
    checkpoints = settings().checkpoints(beside.flow)
    read = checkpoints / str(ledger.newest_generation(checkpoints))
    last, owner = ledger.last_committed(read), offset_log.owner(read)
    begins = offset_log.begins(read) if isinstance(beside.source, Kafka) else None
    end = begins if last is None else ledger.end_offset(read, last)
    if end is None:
        raise FlowFailed(f"{flow.flow}: its source holds nothing, so nothing was replaced: see what became of it")
    held = tuple(landing_folder.taken(read, end)) if isinstance(beside.source, Files) else ()
    to = {"logOffset": 0} if held else end
    home, before = settings().checkpoints(flow.flow), resume_position.last_stamp(flow)
    number = max(ledger.newest_generation(home) or 0, before["generation"] if before else 0) + 1
    identity = {"flow": flow.flow, "source": owner["source"], "write": owner["write"]}
    generation.begin(home, number, identity, Beginning(to, (number, SEED), files=held), own.spark)
    newest = (resume_position.last_stamp(beside) or {}).get("newest")
    stamp = CommitMetadata(
        flow.flow, number, SEED, own.keeper.epoch(flow.flow), owner["source"], begins, to, newest=newest
    )
    return asdict(stamp)


def _add_to_quarantine(spark: SparkSession, table: Table, stamps: dict[str, Any], stamp: dict[str, Any]) -> None:
    """Beside its old rows, which count until the table is another: in place of what an earlier try has added."""
    rows = _stored(spark, shadow_table.of(table).quarantine)
    flows = {shadow_table.of(flow).flow: stamps[flow.flow] for flow in table.flows}
    parts = [commit.of_batch(rows.filter(F.col("_flow") == name), found) for name, found in flows.items()]
    writer = reduce(DataFrame.unionByName, parts).coalesce(1).write.format("delta").mode("overwrite")
    kinds = {field.name: field.dataType for field in _stored(spark, table.quarantine).schema}
    if all(kinds.get(field.name, field.dataType) == field.dataType for field in rows.schema):
        writer = writer.option("replaceWhere", _of_new_generations(stamps)).option("mergeSchema", "true")
    else:
        # Rows of both kinds have no place in one table.
        writer = writer.option("overwriteSchema", "true")
    with commit.stamped(spark, {**stamp, BACKFILL: {}}, {}):
        writer.save(str(settings().table_path(table.quarantine)))


def _of_new_generations(stamps: dict[str, Any]) -> str:
    return " OR ".join(f"_flow = '{flow}' AND _generation >= {one['generation']}" for flow, one in stamps.items())


def _stored(spark: SparkSession, name: str) -> DataFrame:
    return spark.read.format("delta").load(str(settings().table_path(name)))
