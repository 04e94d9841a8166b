"""Ranges of a table by its time column: checks them, and decides which can be backfilled or refreshed."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from include.errors import UsageError
from include.project.declaration import declaration_error, suggest
from include.spec import Bucket, Table, ddl


def full_refresh_refusal(table: Table) -> str | None:
    """Why a full refresh must not rebuild the table, with an alternative; None if it may."""
    kafka = [str(source) for source in table.topics]
    if table.reset_allowed or (table.reset_allowed is None and not kafka):
        return None
    has_only_tables = all(flow.source.reads_table for flow in table.flows)
    alternative = "backfill a range of it" if has_only_tables else "refresh the tables that read it"
    if table.reset_allowed is False:
        return f"its file says reset_allowed=False; new data still flows: {alternative}, or take that out"
    return (
        f"Kafka forgets, and rows that {', '.join(kafka)} no longer holds would be gone for good, so reset_allowed is "
        f"False; new data still flows: {alternative}, or declare reset_allowed=True"
    )


KINDS = ("TIMESTAMP", "DATE")
UNITS = {"minute": timedelta(minutes=1), "hour": timedelta(hours=1), "day": timedelta(days=1)}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Where ranges end at the latest: the next day would end in the year 10000, which Python and Spark cannot tell.
FIRST, LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
STORED_LENGTH = len("2026-03-01T00:00:00.000000Z")


@dataclass(frozen=True)
class Slice:
    """The rows whose time is at or after `begin` and before `end`. Both None: the whole table."""

    begin: datetime | None = None
    end: datetime | None = None

    def __str__(self) -> str:
        if self.begin is None or self.end is None:
            return "as a whole"
        return f"from {_format_moment(self.begin)} to {_format_moment(self.end)}"

    @property
    def texts(self) -> tuple[str | None, str | None]:
        """Begin and end as stored in the control database: texts of equal length, which compare like the times."""
        if self.begin is None or self.end is None:
            return None, None
        return _format_moment(self.begin, "microseconds"), _format_moment(self.end, "microseconds")

    def condition(self, column: str | None, is_date: bool = False) -> str:
        """A SQL condition for the rows of the range. A row whose time is NULL is in no range."""
        if self.begin is None or self.end is None:
            return "true"
        return f"(`{column}` >= {_literal(self.begin, is_date)} AND `{column}` < {_literal(self.end, is_date)})"

    def others(self, column: str | None, is_date: bool = False) -> str:
        """A SQL condition for all other rows."""
        if self.begin is None or self.end is None:
            return "false"
        begin, end = _literal(self.begin, is_date), _literal(self.end, is_date)
        return f"(`{column}` < {begin} OR `{column}` >= {end} OR `{column}` IS NULL)"

    def extended(self, seconds: float) -> "Slice":
        """The range, extended to both sides, at most to the years 1 and 9999."""
        if self.begin is None or self.end is None:
            return self
        margin = timedelta(seconds=seconds)
        begin = self.begin - min(margin, self.begin - FIRST)
        return Slice(begin, self.end + min(margin, max(LAST - self.end, timedelta())))

    def rounded_to_buckets(self, bucket: Bucket) -> "Slice":
        """The range, extended to whole buckets."""
        assert self.begin and self.end
        unit = UNITS[bucket.unit]
        begin, end = self.begin - (self.begin - EPOCH) % unit, self.end + (EPOCH - self.end) % unit
        return Slice(begin, end)


def check_ranges(table: Table) -> None:
    """Raises DeclarationError for a wrong time column."""
    if table.time_column is None:
        return
    types = ddl.types(table.schema)
    if table.time_column not in types:
        raise declaration_error(
            table,
            f"time_column is {table.time_column!r}, no column of its schema: {suggest(table.time_column, list(types))}",
        )
    if types[table.time_column] not in KINDS:
        raise declaration_error(
            table,
            f"time_column '{table.time_column}' is {types[table.time_column]}: name a column that is TIMESTAMP or DATE",
        )
    if table.is_view:
        raise declaration_error(
            table, "time_column is for tables of appends, and a view is refreshed, not backfilled: take it out"
        )
    if table.write.upserts:
        raise declaration_error(
            table,
            "time_column is for tables of appends, and an Upsert is backfilled by its bucket, or as a whole without "
            "one: take it out",
        )


def parse_slice(table: Table, begin: str | None, end: str | None, as_a_whole: bool = False) -> Slice:
    """Parse a range from two ISO 8601 times. A time without a time zone is UTC.

    Raises UsageError for an invalid range, and for a table that cannot be backfilled, or not as a whole.
    """
    if why := refusal(table, as_a_whole):
        raise UsageError(f"{table.name} cannot be {'refreshed' if as_a_whole else 'backfilled'}: {why}")
    if as_a_whole or table.sliced_by is None:
        if begin or end:
            raise UsageError(f"{table.name} is recomputed as a whole: leave --from and --to out")
        return Slice()
    if not begin or not end:
        raise UsageError(
            f"{table.name} is backfilled by ranges of {table.sliced_by}: name one, --from and --to, or take all, --full"
        )
    time_range = Slice(parse_time("--from", begin), parse_time("--to", end))
    assert time_range.begin and time_range.end
    if time_range.end > LAST:
        raise UsageError(
            f"--to is {end}, and no range ends after {_format_moment(LAST)}: name that, or take all, --full"
        )
    if time_range.begin >= time_range.end:
        raise UsageError(f"--from is {begin}, which is not before --to, {end}: the row at --to is not in the range")
    if is_date(table) and any(bound.timetz() != EPOCH.timetz() for bound in (time_range.begin, time_range.end)):
        raise UsageError(f"{table.sliced_by} of {table.name} is a DATE: name whole days, such as --from 2026-03-01")
    bucket = table.write.recompute
    return time_range.rounded_to_buckets(bucket) if bucket else time_range


def is_date(table: Table) -> bool:
    """Whether the column that cuts its ranges is a DATE."""
    return ddl.types(table.schema).get(table.sliced_by or "") == "DATE"


def refusal(table: Table, as_a_whole: bool = False) -> str | None:
    """Why the table cannot be backfilled, or not as a whole, with an alternative; None if it can."""
    if table.is_view:
        return "it is a view, which has no ranges: refresh it with jobs/refresh.py"
    if as_a_whole and (why := full_refresh_refusal(table)):
        return why
    if len(table.upstream) < len(table.flows) and not as_a_whole:
        return (
            "it keeps what arrived, and Kafka and folders forget, so nobody could make its rows again: backfill the "
            "tables that read it"
        )
    if table.is_recomputed:
        return None
    if feeds := [source for source in table.upstream if source.changes]:
        return f"it keeps changes, and what has changed is past: backfill {feeds[0].table}, and its changes follow"
    if any(source.begins_late for source in table.upstream):
        return "since says where it begins, and what it left out is unknown: take since out first"
    if table.time_column is None and not as_a_whole and not table.merges_changes:
        return (
            "no time_column says by which column a range of it is cut: declare it, Table(time_column=...), or make all "
            "of it again, --full"
        )
    return None


def downstream_slice(reader: Table, table: Table, replaced: Slice) -> Slice | str:
    """The range of a reader that must be backfilled after a range of `table`, or the reason why it cannot be."""
    is_whole = replaced == Slice()
    if why := refusal(reader, is_whole):
        return why
    if is_whole:
        return Slice()
    if reader.write.upserts:
        bucket = reader.write.recompute
        if bucket is None:
            return Slice()
        if bucket.of == table.time_column:
            return replaced.extended(reader.write.reach_seconds).rounded_to_buckets(bucket)
        column = bucket.of
    else:
        if reader.time_column == table.time_column:
            return replaced
        column = str(reader.time_column)
    return (
        f"its ranges are cut by {column}, and the one that was replaced by {table.time_column}, so nobody can tell "
        f"which rows of it are concerned: backfill the range of {column} that they lie in"
    )


def from_stored_texts(begin: str | None, end: str | None) -> Slice:
    """The range from the texts of the control database (`Slice.texts`)."""
    if begin is None or end is None:
        return Slice()
    # Earlier releases left out the zeros of a year before 1000.
    return Slice(*(datetime.fromisoformat(text.zfill(STORED_LENGTH)) for text in (begin, end)))


def parse_time(option: str, text: str) -> datetime:
    try:
        parsed = datetime.fromisoformat(text)
        return parsed.astimezone(UTC) if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{option} is '{text}', no moment: write one such as 2026-03-01T00:00:00Z") from error


def _format_moment(moment: datetime, timespec: str = "auto") -> str:
    # `strftime` does not pad the year.
    return moment.isoformat(timespec=timespec).replace("+00:00", "Z")


def _literal(moment: datetime, is_date: bool) -> str:
    return f"DATE '{moment.date().isoformat()}'" if is_date else f"TIMESTAMP '{moment.isoformat(sep=' ')}'"
