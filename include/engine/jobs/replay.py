"""Puts rows of a quarantine that are good today back into their table, exactly once, in a window.

Makes three commits: marks the rows that meet today's rules with the number of the replay; appends them to the table
under that number as `txnVersion`, which Delta accepts once; deletes the marked rows. If a replay dies after the second
commit, the next one makes the third. If it dies earlier, the next one starts again with the same number.
"""

import json
from collections import Counter
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from sqlalchemy import Engine

from include import logs
from include.catalog import Catalog
from include.control import requesters
from include.control.jobs import store
from include.control.jobs.job import Job
from include.control.store import database
from include.control.store.job_id import JobId, JobKind
from include.control.store.job_schema import jobs
from include.delta import stored_table
from include.engine import commit, sql_text, struct_type
from include.engine.batch import bisection, merge_batch
from include.engine.commit import read_table
from include.engine.jobs.maintenance_window import Window
from include.engine.jobs.worker import Worker, open_worker
from include.engine.rows import deduplicate, quality, storable, transform
from include.engine.rows.merge_changes import DELETED
from include.engine.session import open_session
from include.engine.tables import create_table
from include.errors import UsageError
from include.flows import resume_position
from include.flows.batches import RETRIED
from include.lake import locations
from include.project import replays
from include.project.declaration import suggest
from include.rules import FAILED
from include.settings import settings
from include.spec import CHANGE_SCHEMA, Append, Flow, Kafka, Table, Upsert
from include.spec.origin import FAILED_RECORD

# What JSON has in place of bytes that are no text.
REPLACED = "\N{REPLACEMENT CHARACTER}"


def retried(spark: SparkSession, table: Table, stored_rows: DataFrame, is_committed: Column) -> DataFrame | None:
    """Returns the rows of a quarantine with those rows in place of the failed ones that can be made of these today.

    The new ones have the newest batch of their flow, and in `_rules` what they break today, or else that they failed.
    Returns None if no row can be made of any of them. Only what JSON shows exactly is tried.
    """
    if FAILED_RECORD not in stored_rows.columns:
        return None
    is_failed = F.array_contains(quality.RULES, FAILED) & F.col(FAILED_RECORD).isNotNull() & is_committed
    failed_rows = stored_rows.filter(is_failed)
    made = {flow.flow: rows for flow in table.flows if (rows := _retried_of_flow(spark, flow, failed_rows))}
    if not made:
        return None
    for flow, (_, records) in made.items():
        is_made = is_failed & (F.col("_flow") == flow) & F.col(FAILED_RECORD).isin(records)
        stored_rows = stored_rows.filter(~F.coalesce(is_made, F.lit(False)))
    parts = [stored_rows, *(rows for rows, _ in made.values())]
    return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), parts)


def _retried_of_flow(spark: SparkSession, flow: Flow, failed_rows: DataFrame) -> tuple[DataFrame, list[str]] | None:
    """Returns rows of the quarantine for the failed rows that pass today, and these as JSON."""
    last_commit = resume_position.last_commit_metadata(flow)
    texts = failed_rows.filter(F.col("_flow") == flow.flow).select(FAILED_RECORD)
    if last_commit is None or texts.isEmpty():
        return None
    schema = _source_schema(spark, flow)
    source = texts.select(FAILED_RECORD, F.from_json(FAILED_RECORD, schema, transform.JSON_TIMES).alias("_row"))
    is_exact = transform.record([f"_row`.`{name}" for name in schema.fieldNames()]) == F.col(FAILED_RECORD)
    source = source.filter(is_exact & ~F.contains(FAILED_RECORD, F.lit(REPLACED))).select("_row.*")

    def made(rows: DataFrame) -> DataFrame:
        rows = transform.apply_transform(transform.apply_steps(rows, flow), flow)
        return quality.with_violations(rows, storable.rules_of(flow), flow)

    with bisection.persisted(source) as rows:

        def error_of(begin: int, end: int) -> Exception | None:
            return bisection.error_of(lambda: made(rows.part(begin, end)).write.format("noop").mode("overwrite").save())

        error = error_of(0, rows.count) if rows.count else None
        search = bisection.search(rows.count, error_of, error, has_passed=True) if error else bisection.Search()
        failing = {row.position for row in search.found}
        passing = [position for position in range(rows.count) if position not in failing]
        if search.is_over or not passing:
            return None
        result = made(rows.without(failing))
        is_good = F.size(quality.RULES) == 0
        result = result.withColumn(
            quality.RULES, F.when(is_good, F.array(F.lit(FAILED))).otherwise(F.col(quality.RULES))
        )
        return commit.with_batch_columns(result, last_commit).localCheckpoint(), rows.texts(passing)


def _source_schema(spark: SparkSession, flow: Flow) -> StructType:
    source = flow.source
    if source.reads_topics:
        return struct_type.from_ddl(flow.source_as(Kafka).schema)
    schema = read_table(spark, source.table).schema
    return StructType([*schema, *struct_type.from_ddl(CHANGE_SCHEMA)]) if source.changes else schema


STEP = "replay quarantine"
VIOLATED_NOW, VIOLATED_THEN, IS_GOOD = "_broken_now", "_broken_then", "_is_good"


@dataclass(frozen=True)
class ReplayOutcome:
    """What a replay does.

    good: rows that go back. bad: rows that stay. unchecked: rows that it does not look at. broke: how many rows break
    each rule.
    """

    good: int
    bad: int
    unchecked: int
    broke: dict[str, int]

    def lines(self, table: Table) -> list[str]:
        violations = [f"  {count:,} break '{rule}'" for rule, count in self.broke.items() if count]
        counts = (
            f"{self.good:,} rows are good by today's rules, {self.bad:,} are still bad, "
            f"{self.unchecked:,} not looked at"
        )
        return [f"{table.quarantine}: {counts}", *violations]


def run(
    table: Table,
    tables: Catalog,
    rules: list[str],
    dry_run: bool,
    requester: str = store.BY_HAND,
    reason: str = store.BY_HAND,
) -> None:
    """Replays the rows that broke one of `rules`; without `rules`, all but late ones. requester: a run, or by hand.
    reason: for the audit, where it is no run.

    Raises UsageError if nothing can be replayed, LeaseHeld if the table has another window, Unreachable, and FlowFailed
    if a step fails.
    """
    _require_quarantine(table)
    if dry_run:
        spark = open_session(f"sluice replay {table.name}", tables)
        checked_rows, _ = _check_rules(spark, table, rules)
        print("\n".join(_count_outcome(checked_rows).lines(table)), flush=True)
        return
    engine = database.connect(settings().control_url)
    if requester == store.BY_HAND:
        requesters.record(engine, requesters.REPLAY, table.name, reason)
    job = begin(engine, table, rules, requester)
    with open_worker(engine, tables, f"replay {table.name}", [table.name, table.quarantine]) as worker:
        ReplayJob(engine, job).work(worker)


def begin(engine: Engine, table: Table, rules: list[str], requester: str = store.BY_HAND) -> JobId:
    """Stores the replay, or finds an equal one whose process died or failed. Raises Unreachable."""
    parameters, reason = {"rules": rules}, ", ".join(rules) or "all rules"
    is_same = jobs.c.parameters == json.dumps(parameters)
    return store.begin(engine, JobKind.REPLAY, table.name, requester, is_same, reason=reason, parameters=parameters)


class ReplayJob(Job[Worker, Table]):
    """The replay of a quarantine. Its one stage repeats what an earlier try has done, as far as that is needed."""

    KIND, SCRIPT = JobKind.REPLAY, "jobs/backfill.py --replay-quarantine"

    def plan(self, worker: Worker) -> list[Table]:
        job = self.stored()
        return [worker.tables.table(job.table)] if job.ended_at is None else []

    def run(self, worker: Worker, stage: Table) -> None:
        job = self.stored()
        with store.failure_recorded(self.engine, job):
            _require_quarantine(stage)
            store.enter(self.engine, job, "replaying", stage.quarantine)
            with worker.open_window(stage, job.who, f"{STEP}: {job.reason}", wait_seconds=0) as open_window:
                result = replay(open_window, job.parameters["rules"])
            store.finish(self.engine, job, result)


def _require_quarantine(table: Table) -> None:
    if refusal := replays.refusal(table):
        raise UsageError(refusal)
    if not locations.is_stored(table.quarantine):
        raise UsageError(replays.no_quarantine(table))


def replay(open_window: Window, rules: list[str]) -> str:
    """Replays the rows, inside the window. Returns in words what was done."""
    spark, table = open_window.spark, open_window.table
    metadata = open_window.begin(STEP, table.name)
    create_table.create(spark, table)
    last_number = stored_table.open_table(table.name).transaction_version(_app_id(table)) or 0
    _delete(spark, table, f"_replay <= {last_number}", metadata)
    checked_rows, before = _check_rules(spark, table, rules)
    checked_rows = checked_rows.persist()
    try:
        outcome = _count_outcome(checked_rows)
        print("\n".join(outcome.lines(table)), flush=True)
        if not outcome.good:
            return "no row is good by today's rules"
        marked = metadata if before is None else {**metadata, RETRIED: {"rows_before": before}}
        _mark(spark, checked_rows, table, last_number + 1, marked)
        count = _put_back(spark, table, last_number + 1, metadata)
        result = f"{count:,} rows moved, {outcome.good - count:,} of the good ones were there already"
        logs.info(result, table.name)
        return result
    finally:
        checked_rows.unpersist()


def _put_back(spark: SparkSession, table: Table, number: int, metadata: dict[str, object]) -> int:
    """Appends the marked rows, and deletes them. Returns how many rows the table did not hold yet."""
    metadata = {**metadata, "replay": number}
    put_back = _merge if table.write.upserts else _append
    count = put_back(spark, table, number, metadata)
    _delete(spark, table, f"_replay = {number}", metadata)
    return count


def _mark(spark: SparkSession, checked_rows: DataFrame, table: Table, number: int, metadata: dict[str, object]) -> None:
    rows = checked_rows.withColumn("_replay", F.when(F.col(IS_GOOD), F.lit(number).cast("bigint")))
    rows = rows.drop(VIOLATED_NOW, IS_GOOD)
    with commit.user_metadata(spark, {**metadata, "replay": number}, {}):
        rows.write.format("delta").mode("overwrite").save(str(locations.table_path(table.quarantine)))


def _merge(spark: SparkSession, table: Table, number: int, metadata: dict[str, object]) -> int:
    write = table.write_as(Upsert)
    last_commit = resume_position.last_commit_metadata(table.single_flow)
    assert last_commit, "the rows are of committed batches"
    names = transform.names_of_changes(table)
    changes = read_table(spark, table.quarantine).filter(f"_replay = {number}").select(*[f"`{name}`" for name in names])
    merged = merge_batch.merge(changes, table, write, (last_commit["generation"], last_commit["batch"]))
    with commit.user_metadata(spark, metadata, {}):
        retained = commit.with_batch_columns(merged.hidden, last_commit)
        retained.write.format("delta").mode("append").save(str(locations.table_path(table.retained)))
    once, count = commit.idempotent_write_conf(_app_id(table), number), changes.count()
    with commit.user_metadata(spark, {**metadata, "rows_put_back": count}, once):
        merge_batch.replace_rows(merged, table, write)
    return count


def _append(spark: SparkSession, table: Table, number: int, metadata: dict[str, object]) -> int:
    write = table.write_as(Append)
    stored_rows = read_table(spark, table.quarantine).filter(f"_replay = {number}")
    rows = stored_rows.select(*[f"`{name}`" for name in read_table(spark, table.name).columns])
    if write.unique:
        rows = deduplicate.first_of_each(rows, table, write, near="true", however_late=True)
    rows = rows.persist()
    try:
        count = rows.count()
        with commit.user_metadata(
            spark, {**metadata, "rows_put_back": count}, commit.idempotent_write_conf(_app_id(table), number)
        ):
            commit.append(rows, table)
        return count
    finally:
        rows.unpersist()


def _delete(spark: SparkSession, table: Table, condition: str, metadata: dict[str, object]) -> None:
    if read_table(spark, table.quarantine).filter(condition).isEmpty():
        return
    with commit.user_metadata(spark, metadata, {}):
        spark.sql(f"DELETE FROM {sql_text.delta(locations.table_path(table.quarantine))} WHERE {condition}")


def _check_rules(spark: SparkSession, table: Table, rules: list[str]) -> tuple[DataFrame, int | None]:
    """Returns the quarantine's rows with `_broken_now` (rules they break today) and `_is_good`; both are NULL for rows
    that the replay does not look at. Rows of the source that failed and pass today are replaced by what they make; then
    it also returns how many rows the quarantine holds.
    """
    stored_rows, before = read_table(spark, table.quarantine), None
    _require_known(stored_rows, table, rules)
    if (not rules or FAILED in rules) and (made := retried(spark, table, stored_rows, is_committed(table))) is not None:
        stored_rows, before = made, stored_rows.count()
    # What could not be processed or stored has no row to move.
    is_row = F.col(FAILED_RECORD).isNull() if FAILED_RECORD in stored_rows.columns else F.lit(True)
    is_chosen = F.coalesce(_is_chosen(table, rules) & is_committed(table) & is_row, F.lit(False))
    candidates = stored_rows.filter(is_chosen).withColumnRenamed(quality.RULES, VIOLATED_THEN)
    known_rules = storable.rules_of(table)
    checked_rows = quality.with_violations(candidates, known_rules, table).withColumn(
        IS_GOOD, quality.ends_as("warn", known_rules)
    )
    checked_rows = checked_rows.withColumnsRenamed({quality.RULES: VIOLATED_NOW, VIOLATED_THEN: quality.RULES})
    other_rows = stored_rows.filter(~is_chosen)
    unchecked_rows = other_rows.withColumns({VIOLATED_NOW: F.lit(None), IS_GOOD: F.lit(None)})
    return checked_rows.unionByName(unchecked_rows), before


def _is_chosen(table: Table, rules: list[str]) -> Column:
    """Whether the row is to be replayed. Late rows go back only if their rule is named: readers may not expect them."""
    is_named = _breaks_any(*rules) if rules else F.lit(True)
    if table.merges_changes:
        # Rows of a time when the table merged no changes do not tell what they do.
        is_named &= F.col(DELETED).isNotNull()
    if table.watermark is None or table.watermark.rule in rules:
        return is_named
    return is_named & ~_breaks_any(table.watermark.rule)


def _breaks_any(*rules: str) -> Column:
    return F.arrays_overlap(quality.RULES, F.array(*[F.lit(rule) for rule in rules]))


def is_committed(table: Table) -> Column:
    """Whether the row's batch has committed. The flow will check all rows of an uncommitted batch again."""
    commits = [metadata for flow in table.flows if (metadata := resume_position.last_commit_metadata(flow))]
    return reduce(or_, [_is_up_to(metadata) for metadata in commits], F.lit(False))


def _is_up_to(metadata: dict[str, Any]) -> Column:
    """Whether the row comes from this commit of its flow or an earlier one."""
    flow: str = metadata["flow"]
    generation, batch = F.lit(metadata["generation"]), F.lit(metadata["batch"])
    row_generation, row_batch = F.col("_generation"), F.col("_batch")
    return (F.col("_flow") == flow) & (
        (row_generation < generation) | ((row_generation == generation) & (row_batch <= batch))
    )


def _require_known(stored_rows: DataFrame, table: Table, rules: list[str]) -> None:
    broken_rules = {row.name for row in stored_rows.select(F.explode(quality.RULES).alias("name")).distinct().collect()}
    known_rules = sorted(broken_rules | {rule.name for rule in table.rules})
    for rule in rules:
        if rule not in known_rules:
            raise UsageError(f"no row of {table.quarantine} broke '{rule}': {suggest(rule, known_rules)}")


def _count_outcome(checked_rows: DataFrame) -> ReplayOutcome:
    groups = checked_rows.groupBy(VIOLATED_NOW, IS_GOOD).count().collect()
    total = sum(group["count"] for group in groups)
    good = sum(group["count"] for group in groups if group[IS_GOOD])
    violations: Counter[str] = Counter()
    for group in groups:
        if group[IS_GOOD] is False:
            violations.update(dict.fromkeys(group[VIOLATED_NOW], group["count"]))
    bad = sum(group["count"] for group in groups if group[IS_GOOD] is False)
    return ReplayOutcome(good, bad, total - good - bad, dict(violations))


def _app_id(table: Table) -> str:
    return f"replay/{table.name}"
