"""Writes a batch that data makes fail without the rows that do: finds these, or says why they cannot be told apart."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.checkpoints import checkpoint_files, offset_ranges
from include.checkpoints.offset_ranges import OffsetRange
from include.delta import stored_table
from include.engine import failure
from include.engine.batch import poison, prepare, read, storable
from include.engine.checkpoints.checkpoint import Checkpoint
from include.engine.fast_path.topic_reader import FIRST_MS, LAST_MS
from include.engine.python.limited_batch import is_too_large, limited, too_large
from include.engine.tables import create_table
from include.engine.tables.commit import CommitMetadata
from include.engine.tables.read_table import read_table
from include.errors import FlowBroken, FlowFailed, SluiceError
from include.kafka import broker
from include.ledger import row_outcomes
from include.rules import FAILED
from include.settings import settings
from include.spec import Kafka, Table
from include.spec.origin import FAILED_RECORD

# Commits in which to look for rows that today's definition has made.
RECENT_BATCHES = 100
TIME = "timestamp"
USER_RAISED, UNREAD_FILE = "USER_RAISED_EXCEPTION", "FAILED_READ_FILE"

Check = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True)
class FailedRows:
    """Rows of the source for the quarantine, with columns of it, `_rules` and how each failed."""

    rows: DataFrame
    count: int


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


def announce(table: Table, metadata: CommitMetadata, error: Exception) -> None:
    print(
        f"sluice: {table.flow}: looks for the rows of batch {metadata.batch} that fail: {failure.reason(error)}",
        file=sys.stderr,
        flush=True,
    )


def has_made_rows(table: Table, flow_checkpoint: Checkpoint) -> bool:
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
def isolated(
    rows: DataFrame, table: Table, metadata: CommitMetadata, error: Exception, check: Check, is_proven: bool
) -> Iterator[Isolated]:
    """Yields the rows of a batch without those that fail by themselves.

    rows: of the source. check: makes checked rows of the table of them. is_proven: the definition has made rows before.
    Raises FlowBroken for a definition under which every row fails, and for too many rows.
    """
    readable, unread = _readable(rows, table, metadata)
    if prepare.is_raw(table):
        yield Isolated(readable, unread)
        return
    with poison.held(readable) as batch_rows:

        def error_of(begin: int, end: int) -> Exception | None:
            return poison.error_of(lambda: _run(check(batch_rows.part(begin, end)), table, metadata))

        found: list[poison.Failing] = []
        if batch_rows.count and (repeated := error_of(0, batch_rows.count)):
            search = poison.search(batch_rows.count, error_of, repeated)
            _require_bearable(search, batch_rows.place, table, metadata, error, is_proven)
            found = search.found
        failed = _failed_rows(batch_rows.records(found), len(found), table) if found else None
        yield Isolated(batch_rows.without([row.position for row in found]), _union(unread, failed))


@dataclass(frozen=True)
class IsolatedBuckets:
    """What of an aggregate can be recomputed. starts: of its buckets, in seconds since 1970. left_out: source rows, as
    JSON.
    """

    starts: list[int | None]
    left_out: frozenset[str]
    failed: FailedRows | None


@contextmanager
def rows_and_buckets(
    source: DataFrame,
    starts: Sequence[int | None],
    table: Table,
    metadata: CommitMetadata,
    error: Exception,
    aggregate: Check,
    aggregate_buckets: Callable[[Sequence[int | None], frozenset[str]], DataFrame],
) -> Iterator[IsolatedBuckets]:
    """Yields which buckets can be recomputed, without the source rows that fail by themselves.

    source: the rows of the buckets. starts: of the buckets; none for an aggregate without buckets. Raises FlowBroken as
    `isolated` does, and if an aggregate without buckets fails with no row alone.
    """
    with poison.held(source) as source_rows:

        def error_of(begin: int, end: int) -> Exception | None:
            return poison.error_of(lambda: _run(aggregate(source_rows.part(begin, end)), table, metadata))

        found: list[poison.Failing] = []
        if source_rows.count and (repeated := error_of(0, source_rows.count)):
            search = poison.search(source_rows.count, error_of, repeated)
            if search.found:
                is_proven = stored_table.open_table(table.name).count() > 0
                _require_bearable(search, source_rows.place, table, metadata, error, is_proven)
            found = search.found
        rest = source_rows.without([row.position for row in found])
        still = poison.error_of(lambda: _run(aggregate(rest), table, metadata))
        failed = source_rows.records(found) if found else None
        records = frozenset(row[FAILED_RECORD] for row in failed.collect()) if failed else frozenset()
        rows = _failed_rows(failed, len(found), table) if failed else None
        if still is None:
            yield IsolatedBuckets(list(starts), records, rows)
            return
        if not starts:
            raise not_narrowed(table, metadata, still) from still
        bad = poison.search(
            len(starts),
            lambda begin, end: poison.error_of(
                lambda: _run(aggregate_buckets(starts[begin:end], records), table, metadata)
            ),
            still,
        ).found
        places = [{"bucket": _start_text(starts[failing.position])} for failing in bad]
        named = poison.records_of(source.sparkSession, places, [failing.reason for failing in bad])
        positions = {failing.position for failing in bad}
        good = [start for position, start in enumerate(starts) if position not in positions]
        yield IsolatedBuckets(good, records, _union(rows, _failed_rows(named, len(bad), table)))


def _start_text(start: int | None) -> str | None:
    return None if start is None else datetime.fromtimestamp(start, UTC).isoformat()


def left_out(table: Table) -> frozenset[str]:
    """Returns the source rows, as JSON, that an aggregate leaves out, by its quarantine."""
    if not settings().is_stored(table.quarantine):
        return frozenset()
    stored = stored_table.dataset(table.quarantine)
    if FAILED_RECORD not in stored.schema.names:
        return frozenset()
    records = stored.to_table(columns=[FAILED_RECORD]).column(FAILED_RECORD).to_pylist()
    return frozenset(record for record in records if record is not None)


def _run(rows: DataFrame, table: Table, metadata: CommitMetadata) -> None:
    with limited(rows.sparkSession, table, metadata.batch):
        rows.write.format("noop").mode("overwrite").save()


def _require_bearable(
    search: poison.Search,
    place: Callable[[int], str],
    table: Table,
    metadata: CommitMetadata,
    error: Exception,
    is_proven: bool,
) -> None:
    """Raises FlowBroken if the rows that fail are no exception."""
    if not search.found:
        raise not_narrowed(table, metadata, error) from error
    first = search.found[0]
    where = f"{place(first.position)} ({first.reason})"
    if search.is_over and search.has_passed:
        raise FlowBroken(
            f"{table.flow}: more than {len(search.found):,} rows of batch {metadata.batch} fail, the first at {where}: "
            f"mend the transform and restart, {_way_on(metadata)}",
            first.error_class,
        ) from error
    if search.is_broken and table.python and is_too_large(first.reason):
        raise too_large(table, metadata.batch, table.python, first.reason) from error
    if search.is_broken and (search.is_over or not is_proven):
        raise FlowBroken(
            f"{table.flow}: every row of batch {metadata.batch} that was tried fails, the first at {where}: mend the "
            f"transform or the rule and restart, {_way_on(metadata)}",
            first.error_class,
        ) from error


def not_narrowed(table: Table, metadata: CommitMetadata, error: Exception) -> SluiceError:
    """Returns the error of a batch that fails with no row of it alone."""
    cause = failure.of_exception(table.flow, error)
    if not isinstance(cause, FlowFailed):
        return cause
    return type(cause)(
        f"{table.flow}: batch {metadata.batch} fails, and no row of it alone ({failure.reason(error)}): mend what the "
        f"reason names and restart, {_way_on(metadata)}",
        cause.error,
    )


def of_unread_file(table: Table, metadata: CommitMetadata, error: Exception) -> SluiceError | None:
    """Returns the error of a batch whose source has a damaged or missing data file; None for another error."""
    cause = failure.of_exception(table.flow, error)
    if not (isinstance(cause, FlowFailed) and cause.error.startswith(UNREAD_FILE)):
        return None
    return type(cause)(f"{cause}: restore the file from its backup and restart, {_way_on(metadata)}", cause.error)


def _way_on(metadata: CommitMetadata) -> str:
    what = offset_ranges.describe(metadata.source, metadata.source_from, metadata.source_to)
    return f"or leave out the batch, which reads {what} (action skip)"


def _failed_rows(rows: DataFrame, count: int, table: Table) -> FailedRows:
    spark = rows.sparkSession
    if not settings().is_stored(table.quarantine):
        create_table.create_quarantine(spark, table, spark.sql)
    stored = read_table(spark, table.quarantine)
    return FailedRows(storable.for_quarantine(poison.for_quarantine(rows, stored)), count)


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


def _readable(rows: DataFrame, table: Table, metadata: CommitMetadata) -> tuple[DataFrame, FailedRows | None]:
    """Returns the rows of the batch that can be read, and what cannot: Kafka records that Spark does not read."""
    source = table.source
    if not isinstance(source, Kafka):
        return rows, None
    guard = with_storable_times if prepare.is_raw(table) else lambda records: records
    error = poison.error_of(lambda: guard(rows).write.format("noop").mode("overwrite").save())
    if error is None:
        return rows, None
    spark = rows.sparkSession
    ranges = offset_ranges.kafka_ranges(metadata.source_from, metadata.source_to)
    count = sum(range_.count for range_ in ranges)

    def error_of(begin: int, end: int) -> Exception | None:
        records = guard(read.kafka_between(spark, source, _part(ranges, begin, end)))
        return poison.error_of(lambda: records.write.format("noop").mode("overwrite").save())

    search = poison.search(count, error_of, error)
    unread = [(_part(ranges, row.position, row.position + 1)[0], row.reason) for row in search.found]
    _require_bearable(
        search, lambda position: str(_part(ranges, position, position + 1)[0]), table, metadata, error, True
    )
    places = broker.read_raw(source, [range_ for range_, _ in unread])
    failed = poison.records_of(spark, places, [reason for _, reason in unread])
    readable = [range_ for part in _between(ranges, [row.position for row in search.found]) for range_ in part]
    records = read.kafka_between(spark, source, readable) if readable else rows.limit(0)
    return records, _failed_rows(failed, len(unread), table)


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
