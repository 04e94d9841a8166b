"""Full refresh of a table from its source, for rows that no stored table holds.

The ordinary stream code fills a shadow table next to the old one. Its checkpoint begins at the start of the source. In
the table's window the shadow table reads to the end. Then one commit puts its rows and columns into the table. Each
flow goes on in a new generation from the shadow table's position. Until that commit readers see the old rows.

Each new generation begins before that commit. It waits for a commit of its own, batch 0, so that nobody starts the flow
in between: it would skip rows or write them twice. If the job dies, the commit's metadata says what is left to do.
"""

import time
from contextlib import suppress
from dataclasses import asdict, replace
from functools import reduce
from typing import Any, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.checkpoints import checkpoint_files, landing_folder
from include.control.jobs.backfills import Backfill
from include.delta import stored_table
from include.delta.delta_log import Commit
from include.engine import commit, sql_text, struct_type
from include.engine.checkpoints import definition, generation
from include.engine.commit import CommitMetadata, read_table, txn_app_id
from include.engine.jobs import backfill_commits
from include.engine.jobs.worker import Worker
from include.engine.rows import transform
from include.engine.session import jvm_of
from include.engine.tables import create_table
from include.errors import FlowBroken, FlowFailed, UsageError
from include.flows import resume_position
from include.flows.batches import BACKFILL
from include.flows.source import StartPosition
from include.lake import locations
from include.lake.paths import LakePath, remove_tree
from include.recovery import backfill, unseeded_generations
from include.recovery.unseeded_generations import SEED
from include.spec import Flow, Table

# Before the window, rows that arrive during a round are read by another, until a round is shorter than this.
SHORT_SECONDS = 30
MOST_ROUNDS = 5
APPEND_ONLY = "delta.appendOnly"
T = TypeVar("T", bound=Table)


def shadow_of(table: T) -> T:
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
    checkpoints = [locations.checkpoints(flow.flow) for flow in shadow.flows]
    return [*checkpoints, *map(locations.table_path, (shadow.name, shadow.quarantine, shadow.retained))]


def is_needed(spark: SparkSession, table: Table) -> bool:
    """Whether the rows cannot be computed from stored tables, or do not fit into the stored columns."""
    return not all(flow.source.reads_table and can_go_on(spark, flow) for flow in table.flows)


def can_go_on(spark: SparkSession, flow: Flow) -> bool:
    """Whether Spark can continue from the flow's checkpoint with its present declaration."""
    return not (_is_stored_otherwise(spark, flow) or _is_another_flow(flow))


def _is_stored_otherwise(spark: SparkSession, table: Table) -> bool:
    """Whether `create_table.create` cannot bring stored columns and partitions to the declaration.

    A companion may have columns of its own. A restored one may hold another type of a column than its table.
    """
    declared_types = {field.name: field.dataType for field in struct_type.from_ddl(table.schema)}
    partition_columns = stored_table.open_table(table.name).metadata().partition_columns
    companions = [name for name in (table.quarantine, table.retained) if locations.is_stored(name)]
    return (
        partition_columns != list(table.partition_by)
        or any(declared_types.get(field.name) != field.dataType for field in read_table(spark, table.name).schema)
        or any(
            declared_types.get(field.name, field.dataType) != field.dataType
            for name in companions
            for field in read_table(spark, name).schema
        )
    )


def _is_another_flow(flow: Flow) -> bool:
    """Whether the checkpoint's `owner.json` names another source or write mode than the declaration."""
    home = locations.checkpoints(flow.flow)
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
    if not table.reads_files and _is_stored_otherwise(worker.spark, table):
        _require_no_feed_readers(worker, table)
    if not all(_is_current(flow) for flow in shadow.flows):
        drop(worker.spark, table)
    if locations.is_stored(table.quarantine):
        create_table.create_quarantine(worker.spark, shadow, worker.spark.sql)
    for _ in range(MOST_ROUNDS):
        began_at = time.monotonic()
        read_to_end(worker, table)
        if time.monotonic() - began_at < SHORT_SECONDS:
            return


def _require_no_feed_readers(worker: Worker, table: Table) -> None:
    for flow in worker.tables.flows.values():
        reads_feed = flow.source.changes and flow.source.table == table.name
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


def _is_current(flow: Flow) -> bool:
    """Whether today's definition, and no other, has written the checkpoint."""
    home = locations.checkpoints(flow.flow)
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


def put_in_place(worker: Worker, table: Table, job: Backfill, metadata: dict[str, Any]) -> None:
    """Replaces the table's rows by those of the shadow table, inside the window, holding the leases of its flows.

    `settle` does the rest.
    """
    spark, path = worker.spark, locations.table_path(table.name)
    unseeded_generations.discard(table)
    if table.reads_files:
        backfill.missing_files(table, backfill.stored_file_names(shadow_of(table).name))
    seeds = {flow.flow: _begin_generation(worker, flow, shadow_of(flow)) for flow in table.flows}
    shadow = shadow_of(table)
    if locations.is_stored(shadow.quarantine):
        if not locations.is_stored(table.quarantine):
            create_table.create_quarantine(spark, table, spark.sql)
        _add_to_companion(spark, table.quarantine, shadow.quarantine, table, seeds, metadata)
    if locations.is_stored(shadow.retained):
        _add_to_companion(spark, table.retained, shadow.retained, table, seeds, metadata)
    if stored_table.open_table(table.name).metadata().configuration.get(APPEND_ONLY) == "true":
        spark.sql(f"ALTER TABLE {sql_text.delta(path)} SET TBLPROPERTIES ('{APPEND_ONLY}' = 'false')")
    rows = read_table(spark, shadow.name)
    backfill_metadata = {**backfill_commits.commit_metadata(job, read_table(spark, table.name).count()), "anew": seeds}
    with commit.user_metadata(
        spark, {**metadata, BACKFILL: backfill_metadata}, commit.idempotent_write_conf(backfill.txn_app_id(job), 1)
    ):
        writer = transform.coalesce_small(rows, rows.count()).write.format("delta").mode("overwrite")
        writer = writer.partitionBy(*table.partition_by) if table.partition_by else writer
        writer.option("overwriteSchema", "true").save(str(path))


def finish_swap(spark: SparkSession, table: Table, swap: Commit) -> None:
    """Finishes a swap after its commit: makes batch 0 of each flow's new generation. May be repeated.

    Does nothing for the commit of a backfill of a range.
    """
    seeds = swap.metadata[BACKFILL].get("anew")
    if not seeds:
        return
    for name in filter(locations.is_stored, (table.quarantine, table.retained)):
        with commit.user_metadata(spark, {BACKFILL: {"key": swap.metadata[BACKFILL]["key"]}}, {}):
            path = locations.table_path(name)
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


def _begin_generation(worker: Worker, flow: Flow, shadow: Flow) -> dict[str, Any]:
    """Begins a new generation of the flow from the shadow flow's position; returns the metadata of its batch 0."""
    checkpoints = locations.checkpoints(shadow.flow)
    shadow_checkpoint = checkpoints / str(checkpoint_files.newest_generation(checkpoints))
    last_batch, owner = checkpoint_files.last_committed(shadow_checkpoint), checkpoint_files.owner(shadow_checkpoint)
    begin_offsets = checkpoint_files.initial_offsets(shadow_checkpoint) if shadow.source.reads_topics else None
    end = begin_offsets if last_batch is None else checkpoint_files.end_offset(shadow_checkpoint, last_batch)
    if end is None:
        raise FlowFailed(f"{flow.flow}: its source holds nothing, so nothing was replaced: see what became of it")
    files = tuple(landing_folder.planned_files(shadow_checkpoint, end)) if shadow.source.reads_files else ()
    source_to = {"logOffset": 0} if files else end
    home, last_commit = locations.checkpoints(flow.flow), resume_position.last_commit_metadata(flow)
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
    flows = {shadow_of(flow).flow: seeds[flow.flow] for flow in table.flows}
    parts = [commit.with_batch_columns(rows.filter(F.col("_flow") == flow), seed) for flow, seed in flows.items()]
    writer = reduce(DataFrame.unionByName, parts).coalesce(1).write.format("delta").mode("overwrite")
    types = {field.name: field.dataType for field in read_table(spark, name).schema}
    if all(types.get(field.name, field.dataType) == field.dataType for field in rows.schema):
        writer = writer.option("replaceWhere", _new_generations_condition(seeds)).option("mergeSchema", "true")
    else:
        # One table cannot hold both types of a column.
        writer = writer.option("overwriteSchema", "true")
    with commit.user_metadata(spark, {**metadata, BACKFILL: {}}, {}):
        writer.save(str(locations.table_path(name)))


def _new_generations_condition(seeds: dict[str, Any]) -> str:
    return " OR ".join(
        f"_flow = {sql_text.literal(flow)} AND _generation >= {seed['generation']}" for flow, seed in seeds.items()
    )
