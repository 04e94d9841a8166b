"""Computes the rows of a range with today's code, and replaces the range in the quarantine and in the table."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include import logs
from include.checkpoints import checkpoint_files
from include.checkpoints.offset_ranges import delta_position
from include.control.jobs.backfills import Backfill
from include.delta.delta_log import DeltaLog
from include.engine.batch import failed_rows
from include.engine.commit import read_table
from include.engine.jobs import left_out
from include.engine.jobs.left_out import FlowLeftOut, LeftOut
from include.engine.rows import deduplicate, quality, storable, transform
from include.engine.rows.quality import RowCounts
from include.engine.sources import delta_reader
from include.errors import FlowBroken
from include.flows import delta_source, resume_position
from include.flows.batch_files import AppendedFiles
from include.lake import locations
from include.project import ranges
from include.rules import Expect, Rule
from include.spec import Append, Delta, Flow, Table, Upsert


@dataclass(frozen=True)
class RangeRows:
    """The rows of a range, stored on disk: the table's columns, plus `_flow` for appends and changes.

    last_commits: for each flow, the metadata of the commit up to which its source was read.
    """

    rows: DataFrame
    count: int
    last_commits: dict[str, dict[str, Any]]
    left_out: LeftOut


@dataclass(frozen=True)
class CheckedRows:
    """The rows of a range by today's rules. good: for the table. bad: for the quarantine. last_commits: as `RangeRows`.

    kept: how many rows the rules leave to the table. `unique` may drop some of them. left_out: more for the quarantine.
    """

    good: DataFrame
    bad: DataFrame
    kept: int
    last_commits: dict[str, dict[str, Any]]
    left_out: LeftOut


def last_commits(table: Table) -> dict[str, dict[str, Any]]:
    """Returns the metadata of each flow's newest commit, with `source_to` moved behind replacements of the source."""
    flows = {flow.flow: (flow, last) for flow in table.flows if (last := resume_position.last_commit_metadata(flow))}
    return {name: {**last, "source_to": _resume_at(flow, last["source_to"])} for name, (flow, last) in flows.items()}


def _resume_at(flow: Flow, offset: dict[str, Any]) -> dict[str, Any]:
    """Returns the offset from which the flow reads on: behind commits that replaced rows right after `offset`."""
    return delta_source.skip_replacements(offset, flow.source_as(Delta))


def compute_rows(spark: SparkSession, table: Table, job: Backfill) -> RangeRows:
    """Computes the rows of the range. This is the costly part, done while the streams go on."""
    commits = last_commits(table)
    flows = [flow for flow in table.flows if flow.flow in commits]
    sources = {flow.flow: _rows_read(spark, flow, commits[flow.flow]) for flow in flows}
    return _made(table, job, sources, commits)


def _made(
    table: Table, job: Backfill, sources: Mapping[str, DataFrame], commits: dict[str, dict[str, Any]]
) -> RangeRows:
    """Returns the rows of the range that are made of these source rows, by flow. Rows that fail are left out."""
    flows = {flow.flow: flow for flow in table.flows if flow.flow in sources}
    known, work = failed_rows.left_out(table), left_out.work_of(table, job)

    def persisted(parts: Mapping[str, DataFrame]) -> tuple[DataFrame, int]:
        made = [_transformed(rows, flows[name], job) for name, rows in parts.items()]
        return _persist_on_disk(reduce(DataFrame.unionByName, made), table)

    def left_out_by_flow(has_failed: bool) -> dict[str, FlowLeftOut]:
        return {
            name: left_out.of_flow(
                sources[name], flow, job, partial(_transformed, flow=flow, job=job), known, has_failed
            )
            for name, flow in flows.items()
        }

    try:
        rows, count = persisted(sources)
        parts = left_out_by_flow(False) if known else {}
    except (PySparkException, Py4JError) as error:
        if not failed_rows.is_suspected(error, table):
            raise
        failed_rows.announce(work, error)
        parts = left_out_by_flow(True)
        with failed_rows.narrowed(work):
            rows, count = persisted(
                {name: transform.without(source, parts[name].failing) for name, source in sources.items()}
            )
    return RangeRows(rows, count, commits, sum((part.left_out for part in parts.values()), LeftOut()))


def compute_aggregate(spark: SparkSession, table: Flow, job: Backfill) -> RangeRows:
    """Computes the buckets of the range, or all rows of a table without buckets, inside the window. A bucket that
    cannot be computed keeps its stored rows.
    """
    write = table.write_as(Upsert)
    commits = last_commits(table)
    version = checkpoint_files.read_version(commits[table.flow]["source_to"])
    bucket, buckets = write.recompute, transform.Buckets()
    if bucket:
        read_range = job.range.extended(write.reach_seconds).condition(bucket.of)
        buckets = transform.Buckets(read_range, job.range.condition(bucket.name))
    source = transform.of_buckets(read_table(spark, table.source.table, version), table, buckets)
    try:
        rows = transform.recomputed(spark, table, write, version, buckets)
        rows, count = _persist_on_disk(storable.guarded(rows, storable.constraints_of(table)))
        return RangeRows(rows, count, commits, left_out.of_aggregate(source, table, write, job, buckets))
    except (PySparkException, Py4JError) as error:
        if not failed_rows.is_suspected(error, table):
            raise
        with left_out.isolated_aggregate(source, table, write, job, buckets, version, error) as (rows, now_left_out):
            rows, count = _persist_on_disk(rows)
            return RangeRows(rows, count, commits, now_left_out)


def _persist_on_disk(rows: DataFrame, table: Table | None = None) -> tuple[DataFrame, int]:
    """Returns the rows and their number. table: applies its rules, so that a row fails now of which one fails."""
    with ExitStack() as cleanup:
        rows = rows.persist(StorageLevel.DISK_ONLY)
        cleanup.callback(rows.unpersist)
        if table:
            checked_rows = left_out.checked(rows, table)
            count = checked_rows.agg(F.count("*"), F.max(F.size(quality.RULES))).collect()[0][0]
        else:
            count = rows.count()
        cleanup.pop_all()
    return rows, count


@contextmanager
def check_rows(spark: SparkSession, table: Table, job: Backfill, range_rows: RangeRows) -> Iterator[CheckedRows]:
    """Yields the checked rows of the range, inside the window, with those that the flows have read since `range_rows`.

    Raises FlowBroken if a row breaks a rule that fails.
    """
    commits, other_rows = last_commits(table), job.range.others(table.sliced_by, ranges.is_date(table))
    with ExitStack() as cleanup:
        unchecked_rows, now_left_out = _add_newer_rows(spark, table, job, range_rows, commits)
        cleanup.callback(unchecked_rows.unpersist)
        rules = storable.all_rules_of(table)
        rows = quality.with_violations(unchecked_rows, rules, table, other_rows)
        if not all(isinstance(rule, Expect) for rule in rules):
            rows = rows.persist()
            cleanup.callback(rows.unpersist)
        counts = _count_rows(rows, table, rules)
        good = rows if counts.kept == counts.read else rows.filter(quality.ends_as("warn", rules))
        good = good.select(*[f"`{name}`" for name in transform.names_of_changes(table)])
        if table.write.unique:
            good = deduplicate.first_of_each(good, table, table.write_as(Append), other_rows)
        bad = rows.filter(quality.ends_as("quarantine", rules)) if counts.quarantined else rows.limit(0)
        yield CheckedRows(good, bad, counts.kept, commits, now_left_out)


def _rows_read(spark: SparkSession, flow: Flow, last_commit: dict[str, Any]) -> DataFrame:
    """Returns all source rows that the flow has read, exact to the file."""
    source = flow.source_as(Delta)
    path, end = locations.table_path(source.table), last_commit["source_to"]
    is_first = end.get("isStartingVersion")
    version = delta_position(end)[0] if is_first else checkpoint_files.read_version(end)
    rows = read_table(spark, source.table, version)
    unread_files = AppendedFiles(DeltaLog(path), source).left_of(end) if is_first or delta_position(end)[1] >= 0 else []
    if unread_files:
        rows = rows.filter(~F.col("_metadata.file_name").isin([file.path.rpartition("/")[2] for file in unread_files]))
    return rows


def _add_newer_rows(
    spark: SparkSession, table: Table, job: Backfill, range_rows: RangeRows, commits: dict[str, dict[str, Any]]
) -> tuple[DataFrame, LeftOut]:
    """Returns the computed rows and those that the flows have read since."""
    newer = {}
    for flow in table.flows:
        previous, newest = range_rows.last_commits.get(flow.flow), commits.get(flow.flow)
        if newest is None or (previous and previous["source_to"] == newest["source_to"]):
            continue
        if previous is None:
            newer[flow.flow] = _rows_read(spark, flow, newest)
            continue
        if _has_replaced(flow, previous["source_to"], newest["source_to"]):
            # The computed rows come from rows that the source no longer holds.
            computed = compute_rows(spark, table, job)
            return computed.rows, computed.left_out
        if (rows := _between(spark, flow, previous["source_to"], newest["source_to"])) is not None:
            newer[flow.flow] = rows
    if not newer:
        return range_rows.rows, range_rows.left_out
    made = _made(table, job, newer, commits)
    return range_rows.rows.unionByName(made.rows), range_rows.left_out + made.left_out


def _has_replaced(flow: Flow, begin: Any, end: Any) -> bool:
    """Returns whether a commit of the source between two offsets removed rows."""
    log = DeltaLog(locations.table_path(flow.source.table))
    first = delta_position(begin)[0] + bool(begin.get("isStartingVersion"))
    versions = [version for version in log.versions if first <= version <= delta_position(end)[0]]
    removed = (
        action["remove"] for version in versions for action in log.actions(version, b'"remove"') if "remove" in action
    )
    return any(file.get("dataChange", True) for file in removed)


def _between(spark: SparkSession, flow: Flow, begin: Any, end: Any) -> DataFrame | None:
    """Returns the rows of the files between two offsets without listing the whole source, which would take too long."""
    source = flow.source_as(Delta)
    path = locations.table_path(source.table)
    files = [file.path for file in AppendedFiles(DeltaLog(path), source).between(begin, end)]
    return delta_reader.rows_of_files(spark, source.table, files) if files else None


def _transformed(rows: DataFrame, flow: Flow, job: Backfill) -> DataFrame:
    """Returns the transformed rows that lie in the range, with the columns of `RangeRows.rows`."""
    rows = transform.apply_transform(transform.apply_steps(rows, flow), flow).filter(condition(flow, job))
    return rows.withColumn("_flow", F.lit(flow.flow))


def _count_rows(checked_rows: DataFrame, table: Table, rules: tuple[Rule, ...]) -> RowCounts:
    """Counts the rows by what the rules say of them. Raises FlowBroken if a row breaks a rule that fails."""
    groups = checked_rows.groupBy(quality.RULES).count().collect()
    counts = RowCounts.of([(group[quality.RULES], group["count"]) for group in groups], rules)
    if failing := counts.failing(rules):
        raise FlowBroken(
            f"{table.name}: rows of the range break {failing}, and nothing of it was replaced: fix the rule or the "
            f"transform, or let the rule say otherwise='quarantine'",
            "EXPECTATION_FAILED",
        )
    words = f"{counts.kept:,} kept, {counts.quarantined:,} quarantined, {counts.dropped:,} dropped"
    logs.info(f"{counts.read:,} rows in the range, {words}", table.name)
    return counts


def condition(table: Table, job: Backfill) -> str:
    return job.range.condition(table.sliced_by, ranges.is_date(table))
