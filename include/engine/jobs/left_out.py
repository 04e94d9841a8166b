"""Source rows of which a backfill can make no rows: it leaves them out and quarantines them, as a flow does.

A row of which rows can be made today leaves the quarantine.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from include.control.jobs.backfills import Backfill
from include.engine import sql_text
from include.engine.batch import bisection, failed_rows
from include.engine.batch.failed_rows import Work
from include.engine.commit import read_table
from include.engine.rows import deduplicate, quality, storable, transform
from include.engine.rows.micro_batch import FailedRows
from include.engine.rows.transform import Buckets
from include.project.ranges import Slice
from include.rules import Expect
from include.spec import Flow, Table, Upsert
from include.spec.origin import FAILED_RECORD


@dataclass(frozen=True)
class LeftOut:
    """What a backfill says of source rows that fail, or have failed.

    failed: by flow, for the quarantine. superseded: source rows as JSON. Their rows in the quarantine are replaced by
    those of `failed`.
    """

    failed: Mapping[str, DataFrame] = field(default_factory=dict)
    superseded: frozenset[str] = frozenset()

    def __add__(self, other: "LeftOut") -> "LeftOut":
        failed = dict(self.failed)
        for flow, rows in other.failed.items():
            failed[flow] = failed[flow].unionByName(rows, allowMissingColumns=True) if flow in failed else rows
        return LeftOut(failed, self.superseded | other.superseded)

    def condition(self, of_range: str) -> str:
        """Returns a SQL condition for the rows of the quarantine that the backfill replaces. of_range: of its range."""
        if not self.superseded or of_range == "true":
            return of_range
        return f"({of_range}) OR sha2(`{FAILED_RECORD}`, 256) IN ({', '.join(sorted(map(_digest, self.superseded)))})"


def _digest(record: str) -> str:
    return sql_text.literal(hashlib.sha256(record.encode()).hexdigest())


def work_of(table: Table, job: Backfill) -> Work:
    return Work(table, table.name, f"the backfill {job.range}", "run it again: nothing was replaced")


def checked(rows: DataFrame, table: Table) -> DataFrame:
    """Returns rows with `_rules`, by the rules that look at a row alone."""
    rules = tuple(rule for rule in storable.all_rules_of(table) if isinstance(rule, Expect))
    return quality.with_violations(rows, rules, table)


@dataclass(frozen=True)
class FlowLeftOut:
    """What is left out of the source rows of one flow. failing: the rows that fail now, as JSON."""

    left_out: LeftOut
    failing: frozenset[str]


def of_flow(
    source: DataFrame,
    flow: Flow,
    job: Backfill,
    make: Callable[[DataFrame], DataFrame],
    known: frozenset[str],
    has_failed: bool,
) -> FlowLeftOut:
    """Returns what the backfill leaves out of these source rows.

    make: makes rows of the range. known: source rows, as JSON, that are in the quarantine because they failed.
    has_failed: whether one fails now. Raises FlowBroken as `failed_rows.failing` does.
    """
    failed: FailedRows | None = None
    failing = frozenset[str]()
    if has_failed:
        failed, failing = failed_rows.failing(
            source,
            lambda rows: checked(make(rows), flow),
            work_of(flow, job),
            known,
            is_part=job.range != Slice(),
        )
    passing = frozenset() if job.range == Slice() else _that_make_rows(source, make, known - failing)
    return FlowLeftOut(LeftOut({flow.flow: failed.rows} if failed else {}, failing | passing), failing)


def of_aggregate(source: DataFrame, table: Flow, write: Upsert, job: Backfill, buckets: Buckets) -> LeftOut:
    """Returns what leaves the quarantine of an aggregate where nothing fails. source, buckets: of the range."""
    known = failed_rows.left_out(table)
    if not known or job.range == Slice():
        return LeftOut()
    return LeftOut(superseded=_passing(source, table, buckets, known) | _places(_starts(source, table, write, job)))


@contextmanager
def isolated_aggregate(
    source: DataFrame, table: Flow, write: Upsert, job: Backfill, buckets: Buckets, version: int, error: Exception
) -> Iterator[tuple[DataFrame, LeftOut]]:
    """Yields the rows of an aggregate without the source rows that fail, and what the backfill leaves out.

    source, buckets: of the range. A bucket that fails as a whole keeps its stored rows. error: of all together.
    """
    work, spark, bucket = work_of(table, job), source.sparkSession, write.recompute
    failed_rows.announce(work, error)
    starts, constraints = _starts(source, table, write, job), storable.constraints_of(table)

    def at(some_starts: Collection[int | None], failing: Collection[int | None], records: frozenset[str]) -> DataFrame:
        if bucket is None:
            return transform.aggregated(transform.without(source, records), table, write)
        some = Buckets.at(some_starts, bucket, write, failing)
        return storable.guarded(transform.recomputed(spark, table, write, version, some, records), constraints)

    with failed_rows.rows_and_buckets(
        source,
        starts,
        work,
        error,
        lambda rows: storable.guarded(transform.aggregated(rows, table, write, buckets), constraints),
        lambda some_starts, records: at(some_starts, (), records),
    ) as isolated:
        rows = at(isolated.starts, isolated.failing, isolated.left_out)
        if isolated.failing:
            assert bucket
            kept = deduplicate.condition(bucket.name, isolated.failing, bucket.unit)
            rows = rows.unionByName(read_table(spark, table.name).filter(kept))
        passing = frozenset[str]()
        if job.range != Slice():
            passing = _passing(source, table, buckets, failed_rows.left_out(table) - isolated.left_out)
        failed = {table.flow: isolated.failed.rows} if isolated.failed else {}
        yield rows, LeftOut(failed, isolated.left_out | passing | _places(starts))


def _starts(source: DataFrame, table: Table, write: Upsert, job: Backfill) -> list[int | None]:
    """Returns the starts of the buckets of the range, in seconds since 1970; none for an aggregate without buckets."""
    bucket = write.recompute
    if bucket is None:
        return []
    rows = transform.apply_steps(source, table).filter(job.range.condition(bucket.of))
    counts = transform.count_by_bucket(transform.starts(rows, bucket))
    starts = deduplicate.within_reach(counts, bucket.unit, write.reach_seconds)
    if job.range.begin and job.range.end:
        begin, end = job.range.begin.timestamp(), job.range.end.timestamp()
        starts = {start for start in starts if start is not None and begin <= start < end}
    return sorted(starts, key=lambda start: (start is not None, start))


def _passing(source: DataFrame, table: Table, buckets: Buckets, known: frozenset[str]) -> frozenset[str]:
    return _that_make_rows(source, lambda rows: transform.apply_steps(rows, table).filter(buckets.source), known)


def _places(starts: Collection[int | None]) -> frozenset[str]:
    return frozenset(json.dumps(failed_rows.bucket_place(start)) for start in starts)


def _that_make_rows(
    source: DataFrame, make: Callable[[DataFrame], DataFrame], records: frozenset[str]
) -> frozenset[str]:
    """Returns those of these source rows, as JSON, of which rows of the range are made."""
    if not records:
        return frozenset()
    with bisection.persisted(transform.only(source, records)) as rows:
        positions = bisection.that_hold(rows.count, lambda begin, end: not make(rows.part(begin, end)).isEmpty())
        return frozenset(rows.texts(positions))
