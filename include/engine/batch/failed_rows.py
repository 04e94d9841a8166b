"""Writes a batch without the rows that make it fail: finds these, or says why they cannot be distinguished."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include import logs, personal
from include.checkpoints import checkpoint_files, offset_ranges
from include.checkpoints.offset_ranges import OffsetRange
from include.delta import stored_table
from include.engine import failure
from include.engine.batch import bisection
from include.engine.checkpoints.checkpoint import Checkpoint
from include.engine.commit import CONFLICTS, CommitMetadata, read_table
from include.engine.fast_path.topic_reader import FIRST_MS, LAST_MS
from include.engine.python_limits import is_too_large, limited, too_large
from include.engine.rows import prepare, quality, storable, transform
from include.engine.rows.micro_batch import FailedRows, MicroBatch
from include.engine.sources import kafka_reader
from include.engine.tables import create_table
from include.errors import FlowBroken, FlowFailed, SluiceError
from include.kafka import broker
from include.lake import locations
from include.ledger import row_outcomes
from include.rules import FAILED
from include.spec import CHANGE_SCHEMA, Flow, Kafka, Table, ddl
from include.spec.origin import FAILED_REASON, FAILED_RECORD

# Commits in which to look for rows that today's definition has made.
RECENT_BATCHES = 100
TIME = "timestamp"
USER_RAISED, UNREAD_FILE = "USER_RAISED_EXCEPTION", "FAILED_READ_FILE"

Check = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True)
class Work:
    """What is processed, and may fail because of rows. owner: begins sentences about it. name: "batch 7", say.

    way_on: what to do once the cause is fixed, or instead. batch: its number, None for a job.
    """

    table: Table
    owner: str
    name: str
    way_on: str
    batch: int | None = None

    @classmethod
    def of_batch(cls, table: Flow, metadata: CommitMetadata) -> "Work":
        what = offset_ranges.describe(metadata.source, metadata.source_from, metadata.source_to)
        way_on = f"restart, or leave out the batch, which reads {what} (action skip)"
        return cls(table, table.flow, f"batch {metadata.batch}", way_on, metadata.batch)


@dataclass(frozen=True)
class Isolated:
    """The rows of a batch that can be processed, and the others, if any."""

    rows: DataFrame
    failed: FailedRows | None


def is_suspected(error: Exception, table: Table) -> bool:
    """Whether a row of the batch may have caused the error, and may be left out for it."""
    fails = any(step.parse and step.parse.fails for step in (table, *table.steps))
    if fails and failure.condition(error).startswith(USER_RAISED):
        # The parse is declared to end the flow.
        return False
    return failure.may_follow_a_row(error)


def announce(work: Work, error: Exception) -> None:
    logs.warning(f"looks for the rows of {work.name} that fail: {failure.reason(error, work.table)}", work.owner)


def has_made_rows(table: Flow, flow_checkpoint: Checkpoint) -> bool:
    """Whether today's definition of the flow has made rows in a committed batch."""
    definitions = checkpoint_files.owner(flow_checkpoint.path).get("definitions") or [{"from_batch": 0}]
    first = definitions[-1].get("from_batch", 0)
    return any(
        batch.flow == table.flow
        and batch.generation == flow_checkpoint.generation
        and (batch.batch or 0) >= first
        and batch.read > batch.broke.get(FAILED, 0)
        for batch in row_outcomes.batches(table, RECENT_BATCHES)
    )


@contextmanager
def isolated(batch: MicroBatch, error: Exception, check: Check, is_proven: bool) -> Iterator[Isolated]:
    """Yields the rows of a batch, which are those of the source, without those that fail by themselves.

    check: makes checked rows of the table of them. is_proven: the definition has made rows before.
    Raises FlowBroken for a definition under which every row fails, and for too many rows.
    """
    table, work = batch.table, Work.of_batch(batch.table, batch.metadata)
    readable, unread = _readable(batch, work)
    if prepare.is_raw(table):
        yield Isolated(readable, unread)
        return
    with bisection.persisted(readable) as batch_rows:
        found = _found(batch_rows, check, work, error, is_proven)
        if found is None:
            raise not_narrowed(work, error) from error
        failed = _failed_rows(batch_rows.records(found), len(found), table) if found else None
        yield Isolated(batch_rows.without([row.position for row in found]), _union(unread, failed))


@contextmanager
def narrowed(work: Work) -> Iterator[None]:
    """Runs what is left after a search. Raises the error of what fails with no row alone."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        if isinstance(error, CONFLICTS) or not is_suspected(error, work.table):
            raise
        raise not_narrowed(work, error) from error


def failing(
    rows: DataFrame, check: Check, work: Work, known: Collection[str] = (), is_part: bool = False
) -> tuple[FailedRows | None, frozenset[str]]:
    """Returns the rows that fail by themselves, for the quarantine, and all of them as JSON.

    rows, check: as for `isolated`. known: rows, as JSON, that have failed before. If the others pass, only these are
    tried. is_part: `check` leaves out most rows, so that rows that pass prove nothing unless they make rows. Raises
    FlowBroken as `isolated` does.
    """
    error = bisection.error_of(lambda: _run(check(rows), work))
    if error is None:
        return None, frozenset()
    others_pass = bool(known) and not bisection.error_of(lambda: _run(check(transform.without(rows, known)), work))
    with bisection.persisted(transform.only(rows, known) if others_pass else rows) as source_rows:
        search = _searched(source_rows, check, work, has_passed=others_pass)
        if search is None or not search.found:
            return None, frozenset()
        if is_part and not others_pass:
            rest = check(source_rows.without([row.position for row in search.found]))
            search.has_passed = bool(bisection.error_of(rest.first)) or not rest.isEmpty()
        _require_bearable(search, _place(source_rows, work.table), work, error, is_proven=others_pass)
        records = source_rows.records(search.found)
    left = frozenset(row[FAILED_RECORD] for row in records.select(FAILED_RECORD).collect())
    return _failed_rows(records, len(search.found), work.table), left


def _searched(rows: bisection.Rows, check: Check, work: Work, has_passed: bool = False) -> bisection.Search | None:
    """Searches rows that fail by themselves. Returns None if the rows pass now."""

    def error_of(begin: int, end: int) -> Exception | None:
        return bisection.error_of(lambda: _run(check(rows.part(begin, end)), work))

    repeated = error_of(0, rows.count) if rows.count else None
    return bisection.search(rows.count, error_of, repeated, has_passed) if repeated else None


def _found(
    rows: bisection.Rows, check: Check, work: Work, error: Exception, is_proven: bool
) -> list[bisection.Failing] | None:
    """Returns the rows that fail by themselves; None if only several together do. Raises FlowBroken if these are no
    exception.
    """
    search = _searched(rows, check, work)
    if search is None:
        return []
    if not search.found:
        return None
    _require_bearable(search, _place(rows, work.table), work, error, is_proven)
    return search.found


@dataclass(frozen=True)
class IsolatedBuckets:
    """What of an aggregate can be recomputed. starts: of its buckets, in seconds since 1970; failing: of those that
    cannot. left_out: source rows, as JSON.
    """

    starts: list[int | None]
    failing: list[int | None]
    left_out: frozenset[str]
    failed: FailedRows | None


@contextmanager
def rows_and_buckets(
    source: DataFrame,
    starts: Sequence[int | None],
    work: Work,
    error: Exception,
    aggregate: Check,
    aggregate_buckets: Callable[[Sequence[int | None], frozenset[str]], DataFrame],
) -> Iterator[IsolatedBuckets]:
    """Yields which buckets can be recomputed, without the source rows that fail by themselves.

    source: the rows of the buckets, the oldest first. starts: of the buckets; none for an aggregate without buckets. Of
    such an aggregate, those rows are left out, too, with which the ones before them fail together. Raises FlowBroken as
    `isolated` does, and if an aggregate without buckets fails with too many rows.
    """
    table = work.table
    with bisection.persisted(source) as source_rows:
        is_proven = stored_table.open_table(table.name).count() > 0
        found = _found(source_rows, aggregate, work, error, is_proven) or []
        rest = source_rows.without([row.position for row in found])
        still = bisection.error_of(lambda: _run(aggregate(rest), work))
        if still and not starts:
            found = [*found, *_together(source_rows, found, aggregate, work, still)]
            still = None
        failed = source_rows.records(found) if found else None
        records = frozenset(row[0] for row in failed.select(FAILED_RECORD).collect()) if failed else frozenset()
        rows = _failed_rows(failed, len(found), table) if failed else None
        if still is None:
            yield IsolatedBuckets(list(starts), [], records, rows)
            return
        bad = bisection.search(
            len(starts),
            lambda begin, end: bisection.error_of(lambda: _run(aggregate_buckets(starts[begin:end], records), work)),
            still,
        ).found
        places = [bucket_place(starts[failing.position]) for failing in bad]
        named = bisection.records_of(source.sparkSession, places, [failing.reason for failing in bad])
        left = [starts[failing.position] for failing in bad]
        good = [start for start in starts if start not in left]
        yield IsolatedBuckets(good, left, records, _union(rows, _failed_rows(named, len(bad), table)))


def _together(
    rows: bisection.Rows, found: Sequence[bisection.Failing], aggregate: Check, work: Work, error: Exception
) -> list[bisection.Failing]:
    """Returns the rows with which the rows before them fail together, although each passes alone.

    found: rows that are left out already.
    """
    alone = {row.position for row in found}

    def error_of(end: int, left_out: frozenset[int]) -> Exception | None:
        some_rows = rows.part(0, end, without=alone | left_out)
        return bisection.error_of(lambda: _run(aggregate(some_rows), work))

    together = bisection.search_together(rows.count, error_of)
    if together is None:
        raise not_narrowed(work, error) from error
    return together


def bucket_place(start: int | None) -> dict[str, str | None]:
    """Returns what the quarantine says of a bucket that fails. start: in seconds since 1970."""
    if start is None:
        return {"bucket": None}
    is_date = FIRST_MS <= start * 1000 <= LAST_MS
    return {"bucket": datetime.fromtimestamp(start, UTC).isoformat() if is_date else f"{start} s since 1970"}


def left_out_with_batch(rows: DataFrame, table: Flow, reason: str) -> DataFrame:
    """Returns source rows of an aggregate, or changes of such rows, for the quarantine, by which they are left out."""
    changes = ddl.columns(CHANGE_SCHEMA)
    if table.source.changes:
        rows = rows.filter(F.col("_change_type").isin("insert", "update_postimage")).drop(*changes)
    columns = {FAILED_RECORD: transform.record(rows.columns), FAILED_REASON: F.lit(reason)}
    return _failed_rows(bisection.as_failed(rows.withColumns(columns)), 0, table).rows


def left_out(table: Table) -> frozenset[str]:
    """Returns the source rows, as JSON, of which no row could be made, by the table's quarantine."""
    if not locations.is_stored(table.quarantine):
        return frozenset()
    stored = stored_table.dataset(table.quarantine)
    if FAILED_RECORD not in stored.schema.names:
        return frozenset()
    rows = stored.to_table(columns=[FAILED_RECORD, quality.RULES]).to_pylist()
    return frozenset(row[FAILED_RECORD] for row in rows if row[FAILED_RECORD] and FAILED in row[quality.RULES])


def _run(rows: DataFrame, work: Work) -> None:
    limits = None if work.batch is None else work.table.python
    with limited(rows.sparkSession, limits, work.owner, work.batch or 0):
        rows.write.format("noop").mode("overwrite").save()


def _place(rows: bisection.Rows, table: Table) -> Callable[[int], str]:
    return partial(rows.place, shows_row=not table.has_personal_data)


def _require_bearable(
    search: bisection.Search, place: Callable[[int], str], work: Work, error: Exception, is_proven: bool
) -> None:
    """Raises FlowBroken if the rows that fail are no exception."""
    table, first = work.table, search.found[0]
    where = f"{place(first.position)} ({personal.sentence(table, first.reason)})"
    if search.is_over and search.has_passed:
        raise FlowBroken(
            f"{work.owner}: more than {len(search.found):,} rows of {work.name} fail, the first at {where}: fix the "
            f"transform and {work.way_on}",
            first.error_class,
        ) from error
    if search.is_broken and table.python and is_too_large(first.reason):
        raise too_large(work.owner, work.name, table.python, first.reason) from error
    if search.is_broken and (search.is_over or not is_proven):
        raise FlowBroken(
            f"{work.owner}: every row of {work.name} that was tried fails, the first at {where}: fix the transform or "
            f"the rule and {work.way_on}",
            first.error_class,
        ) from error


def not_narrowed(work: Work, error: Exception) -> SluiceError:
    """Returns the error of a batch, or of a job, that fails with no row of it alone."""
    cause = failure.of_exception(work.owner, error, work.table)
    if not isinstance(cause, FlowFailed):
        return cause
    return type(cause)(
        f"{work.owner}: {work.name} fails, and no row of it alone ({failure.reason(error, work.table)}): fix what the "
        f"reason names and {work.way_on}",
        cause.error,
    )


def of_unread_file(table: Flow, metadata: CommitMetadata, error: Exception) -> SluiceError | None:
    """Returns the error of a batch whose source has a damaged or missing data file; None for another error."""
    cause = failure.of_exception(table.flow, error, table)
    if not (isinstance(cause, FlowFailed) and cause.error.startswith(UNREAD_FILE)):
        return None
    way_on = Work.of_batch(table, metadata).way_on
    return type(cause)(f"{cause}: restore the file from its backup and {way_on}", cause.error)


def _failed_rows(rows: DataFrame, count: int, table: Table) -> FailedRows:
    spark = rows.sparkSession
    if not locations.is_stored(table.quarantine):
        create_table.create_quarantine(spark, table, spark.sql)
    stored = read_table(spark, table.quarantine)
    return FailedRows(storable.for_quarantine(bisection.for_quarantine(rows, stored)), count)


def _union(first: FailedRows | None, second: FailedRows | None) -> FailedRows | None:
    if first is None or second is None:
        return first or second
    return FailedRows(first.rows.unionByName(second.rows, allowMissingColumns=True), first.count + second.count)


def with_storable_times(records: DataFrame) -> DataFrame:
    """Returns Kafka records; one whose time no reader of Delta knows fails, so that it is found and quarantined."""
    seconds = F.unix_seconds(TIME)
    is_storable = seconds.between(FIRST_MS // 1000, LAST_MS // 1000)
    message = F.concat(F.lit("its timestamp is not within the years 1 to 9999: "), seconds, F.lit(" s since 1970"))
    return records.withColumn(
        TIME, F.when(F.col(TIME).isNull() | is_storable, F.col(TIME)).otherwise(F.raise_error(message))
    )


def _readable(batch: MicroBatch, work: Work) -> tuple[DataFrame, FailedRows | None]:
    """Returns the rows of the batch that can be read, and what cannot: Kafka records that Spark does not read."""
    flow, rows, metadata = batch.table, batch.rows, batch.metadata
    if not flow.source.reads_topics:
        return rows, None
    source = flow.source_as(Kafka)
    guard = with_storable_times if prepare.is_raw(flow) else lambda records: records
    error = bisection.error_of(lambda: guard(rows).write.format("noop").mode("overwrite").save())
    if error is None:
        return rows, None
    spark = rows.sparkSession
    ranges = offset_ranges.kafka_ranges(metadata.source_from, metadata.source_to)
    count = sum(range_.count for range_ in ranges)

    def error_of(begin: int, end: int) -> Exception | None:
        records = guard(kafka_reader.records_between(spark, source, _part(ranges, begin, end)))
        return bisection.error_of(lambda: records.write.format("noop").mode("overwrite").save())

    search = bisection.search(count, error_of, error)
    unread = [(_part(ranges, row.position, row.position + 1)[0], row.reason) for row in search.found]
    if not search.found:
        raise not_narrowed(work, error) from error
    _require_bearable(search, lambda position: str(_part(ranges, position, position + 1)[0]), work, error, True)
    places = broker.read_raw(source, [range_ for range_, _ in unread])
    failed = bisection.records_of(spark, places, [reason for _, reason in unread])
    readable = [range_ for part in _between(ranges, [row.position for row in search.found]) for range_ in part]
    records = kafka_reader.records_between(spark, source, readable) if readable else rows.limit(0)
    return records, _failed_rows(failed, len(unread), flow)


def _part(ranges: list[OffsetRange], begin: int, end: int) -> list[OffsetRange]:
    """Returns the offsets of these ranges from one position to before another, over all of them."""
    parts, position = [], 0
    for range_ in ranges:
        first, after = max(begin - position, 0), min(end - position, range_.count)
        if first < after:
            parts.append(OffsetRange(range_.topic, range_.partition, range_.first + first, range_.first + after))
        position += range_.count
    return parts


def _between(ranges: list[OffsetRange], left_out: list[int]) -> Iterator[list[OffsetRange]]:
    """Yields the ranges between these positions."""
    begin = 0
    for position in [*sorted(left_out), sum(range_.count for range_ in ranges)]:
        yield _part(ranges, begin, position)
        begin = position + 1
