"""Puts the rows of a shadow table into its table, in one commit; each flow then goes on from the shadow's position.

Each flow's new generation begins before that commit. It waits for a commit of its own, batch 0, so that nobody starts
the flow in between: it would skip rows or write them twice. If the job dies, the commit's metadata says what is left to
do.
"""

from dataclasses import asdict
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.checkpoints import checkpoint_files, landing_folder
from include.control.jobs.backfills import Backfill
from include.delta import stored_table
from include.delta.delta_log import Commit
from include.engine import sql_text
from include.engine.batch import table_rows
from include.engine.checkpoints import generation
from include.engine.jobs import backfill_commits, shadow_table
from include.engine.jobs.window import Worker
from include.engine.tables import commit, create_table
from include.engine.tables.commit import CommitMetadata, txn_app_id
from include.engine.tables.read_table import read_table
from include.errors import FlowFailed
from include.flows import resume_position
from include.flows.batches import BACKFILL
from include.flows.resume_position import StartPosition
from include.recovery import backfill, unseeded_generations
from include.recovery.unseeded_generations import SEED
from include.settings import settings
from include.spec import Files, Kafka, Table

APPEND_ONLY = "delta.appendOnly"


def put_in_place(worker: Worker, table: Table, job: Backfill, metadata: dict[str, Any]) -> None:
    """Replaces the table's rows by those of the shadow table, inside the window, holding the leases of its flows.

    `settle` does the rest.
    """
    spark, path = worker.spark, settings().table_path(table.name)
    unseeded_generations.discard(table)
    if isinstance(table.source, Files):
        backfill.missing_files(table, backfill.stored_file_names(shadow_table.shadow_of(table).name))
    seeds = {flow.flow: _begin_generation(worker, flow, shadow_table.shadow_of(flow)) for flow in table.flows}
    shadow = shadow_table.shadow_of(table)
    if settings().is_stored(shadow.quarantine):
        if not settings().is_stored(table.quarantine):
            create_table.create_quarantine(spark, table, spark.sql)
        _add_to_companion(spark, table.quarantine, shadow.quarantine, table, seeds, metadata)
    if settings().is_stored(shadow.retained):
        _add_to_companion(spark, table.retained, shadow.retained, table, seeds, metadata)
    if stored_table.open_table(table.name).metadata().configuration.get(APPEND_ONLY) == "true":
        spark.sql(f"ALTER TABLE {sql_text.delta(path)} SET TBLPROPERTIES ('{APPEND_ONLY}' = 'false')")
    rows = read_table(spark, shadow.name)
    backfill_metadata = {**backfill_commits.commit_metadata(job, read_table(spark, table.name).count()), "anew": seeds}
    with commit.user_metadata(
        spark, {**metadata, BACKFILL: backfill_metadata}, commit.idempotent_write_conf(backfill.txn_app_id(job), 1)
    ):
        writer = table_rows.coalesce_small(rows, rows.count()).write.format("delta").mode("overwrite")
        writer = writer.partitionBy(*table.partition_by) if table.partition_by else writer
        writer.option("overwriteSchema", "true").save(str(path))


def finish_swap(spark: SparkSession, table: Table, swap: Commit) -> None:
    """Finishes a swap after its commit: makes batch 0 of each flow's new generation. May be repeated.

    Does nothing for the commit of a backfill of a range.
    """
    seeds = swap.metadata[BACKFILL].get("anew")
    if not seeds:
        return
    for name in filter(settings().is_stored, (table.quarantine, table.retained)):
        with commit.user_metadata(spark, {BACKFILL: {"key": swap.metadata[BACKFILL]["key"]}}, {}):
            path = settings().table_path(name)
            spark.sql(f"DELETE FROM {sql_text.delta(path)} WHERE NOT ({_new_generations_condition(seeds)})")
    for seed in seeds.values():
        _commit_seed(spark, table, seed)
    # Makes the table append-only again and follows its declaration.
    create_table.create(spark, table)


def _commit_seed(spark: SparkSession, table: Table, seed: dict[str, Any]) -> None:
    with commit.user_metadata(
        spark, seed, commit.idempotent_write_conf(txn_app_id(seed["flow"], seed["generation"]), SEED)
    ):
        commit.append(read_table(spark, table.name).limit(0), table)


def _begin_generation(worker: Worker, flow: Table, shadow: Table) -> dict[str, Any]:
    """Begins a new generation of the flow from the shadow flow's position; returns the metadata of its batch 0."""
    checkpoints = settings().checkpoints(shadow.flow)
    shadow_checkpoint = checkpoints / str(checkpoint_files.newest_generation(checkpoints))
    last_batch, owner = checkpoint_files.last_committed(shadow_checkpoint), checkpoint_files.owner(shadow_checkpoint)
    begin_offsets = checkpoint_files.initial_offsets(shadow_checkpoint) if isinstance(shadow.source, Kafka) else None
    end = begin_offsets if last_batch is None else checkpoint_files.end_offset(shadow_checkpoint, last_batch)
    if end is None:
        raise FlowFailed(f"{flow.flow}: its source holds nothing, so nothing was replaced: see what became of it")
    files = tuple(landing_folder.planned_files(shadow_checkpoint, end)) if isinstance(shadow.source, Files) else ()
    source_to = {"logOffset": 0} if files else end
    home, last_commit = settings().checkpoints(flow.flow), resume_position.last_commit_metadata(flow)
    number = max(checkpoint_files.newest_generation(home) or 0, last_commit["generation"] if last_commit else 0) + 1
    identity = {"flow": flow.flow, "source": owner["source"], "write": owner["write"]}
    # The rows of the seed are those that this definition has made.
    made_by = [{**owner["definitions"][-1], "from_batch": SEED}]
    beginning = StartPosition(source_to, (number, SEED), files=files)
    generation.begin(home, number, {**identity, "definitions": made_by}, beginning, worker.spark)
    newest = (resume_position.last_commit_metadata(shadow) or {}).get("newest")
    metadata = CommitMetadata(
        flow.flow,
        number,
        SEED,
        worker.renewer.epoch(flow.flow),
        owner["source"],
        begin_offsets,
        source_to,
        newest=newest,
    )
    return asdict(metadata)


def _add_to_companion(
    spark: SparkSession, name: str, shadow_name: str, table: Table, seeds: dict[str, Any], metadata: dict[str, Any]
) -> None:
    """Adds the rows of the shadow table's companion, in place of those of an earlier try. Old rows count until the
    swap.
    """
    rows = read_table(spark, shadow_name)
    flows = {shadow_table.shadow_of(flow).flow: seeds[flow.flow] for flow in table.flows}
    parts = [commit.with_batch_columns(rows.filter(F.col("_flow") == flow), seed) for flow, seed in flows.items()]
    writer = reduce(DataFrame.unionByName, parts).coalesce(1).write.format("delta").mode("overwrite")
    types = {field.name: field.dataType for field in read_table(spark, name).schema}
    if all(types.get(field.name, field.dataType) == field.dataType for field in rows.schema):
        writer = writer.option("replaceWhere", _new_generations_condition(seeds)).option("mergeSchema", "true")
    else:
        # One table cannot hold both types of a column.
        writer = writer.option("overwriteSchema", "true")
    with commit.user_metadata(spark, {**metadata, BACKFILL: {}}, {}):
        writer.save(str(settings().table_path(name)))


def _new_generations_condition(seeds: dict[str, Any]) -> str:
    return " OR ".join(
        f"_flow = {sql_text.literal(flow)} AND _generation >= {seed['generation']}" for flow, seed in seeds.items()
    )
