"""How the rows of a batch come into a table: appended, upserted by key, or in place of all others."""

from dataclasses import dataclass
from typing import Any, ClassVar

LATE_ACTIONS = ("quarantine", "drop")
# With their seconds.
BUCKET_UNITS = {"minute": 60, "hour": 3_600, "day": 86_400}
DAY_MINUTES = 1_440


@dataclass(frozen=True)
class Watermark:
    """How late a row may arrive: its TIMESTAMP `of` may be at most `minutes` before the maximum of earlier batches.

    Only rows that break no rule count for the maximum. A row whose time is NULL is never late, and no delete is.
    late: action for a late row: `quarantine`, with the name of `rule`, or `drop`.
    ahead_minutes: a row whose time lies further ahead of the moment when its batch was planned does not count for the
        maximum. One clock that is wrong would make all later rows late. The row is kept, and counted as `ahead_rule`.
    """

    of: str
    minutes: float
    late: str = "quarantine"
    ahead_minutes: float = DAY_MINUTES

    def __repr__(self) -> str:
        # Fingerprints of definitions contain it, and those of older releases stay valid.
        ahead = f", ahead_minutes={self.ahead_minutes!r}" if self.ahead_minutes != DAY_MINUTES else ""
        return f"Watermark(of={self.of!r}, minutes={self.minutes!r}, late={self.late!r}{ahead})"

    @property
    def rule(self) -> str:
        """The rule name of a late row in the quarantine."""
        return f"later than {self.minutes:g} minutes"

    @property
    def ahead_rule(self) -> str:
        """The rule name of a row that is too far ahead to count."""
        return f"further ahead than {self.ahead_minutes:g} minutes"


class WriteMode:
    """What every write mode answers. One that lacks an option has the value that stands here."""

    appends: ClassVar[bool] = False
    upserts: ClassVar[bool] = False
    # Whether each write puts all rows in place of the stored ones.
    replaces: ClassVar[bool] = False
    unique: tuple[str, ...] = ()
    first_by: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    watermark: Watermark | None = None
    recompute: "Bucket | None" = None
    in_windows: bool = False
    sequence_by: str | None = None
    deletes: str | None = None
    truncates: str | None = None
    scd: int = 1
    partial: bool = False

    @property
    def merges_changes(self) -> bool:
        """Whether its source rows are changes of keys."""
        return False

    @property
    def is_recomputed(self) -> bool:
        """Whether each batch recomputes rows from all rows of its source."""
        return False

    @property
    def recomputes_all(self) -> bool:
        """Whether each batch recomputes all rows."""
        return self.replaces

    @property
    def is_history(self) -> bool:
        """Whether a key may have several rows."""
        return self.scd == 2

    @property
    def identified_by(self) -> tuple[str, ...]:
        """The columns that identify a row, or the history of one."""
        return ()

    @property
    def compared(self) -> tuple[str, ...]:
        """The columns whose values it compares."""
        return self.identified_by

    @property
    def reach_seconds(self) -> float:
        """The reach of a bucket, in seconds."""
        return 0

    @property
    def identity(self) -> dict[str, Any]:
        """What must stay the same for a checkpoint to be usable, for JSON."""
        return {"mode": type(self).__name__}


@dataclass(frozen=True)
class Append(WriteMode):
    """Rows are added and never changed.

    unique: columns that identify a row. Of several rows with the same values, in any batch, only the first is kept.
    first_by: columns that order the rows of a batch, to find the first one.
    watermark: limits the search for repeated rows: those within its minutes are found, and older stored rows are not
        read. `unique` then needs no time column.
    """

    appends: ClassVar[bool] = True
    unique: tuple[str, ...] = ()
    first_by: tuple[str, ...] = ()
    watermark: Watermark | None = None

    @property
    def identified_by(self) -> tuple[str, ...]:
        return self.unique

    @property
    def compared(self) -> tuple[str, ...]:
        return (*self.unique, *self.first_by)


@dataclass(frozen=True)
class Bucket:
    """A time bucket: the column `name` is the source column `of`, truncated to `unit` (minute, hour or day, UTC).

    The engine adds the column to the rows that `transform` gets.
    """

    name: str
    of: str
    unit: str


# The rule that a change breaks which has no place in the table.
CHANGE_RULE = "key and sequence not null"
# The rule that a change breaks after which no other could come.
SEQUENCE_RULE = "sequence can be overtaken"
# The rule that a change breaks that does not tell what it does: a condition is NULL, or was made of a wrong value.
FLAG_RULE = "known whether it deletes"
# The columns of a history, and the column of a table with partial changes.
HISTORY_SCHEMA = """
    valid_from {type} COMMENT 'the change that began this row',
    valid_to {type} COMMENT 'the change that ended it; NULL while the row is current',
    is_current BOOLEAN COMMENT 'whether no later change has ended it'
"""
PARTIAL_SCHEMA = """
    _sequences MAP<STRING, {type}> COMMENT 'by column, the change that set it'
"""


@dataclass(frozen=True)
class Upsert(WriteMode):
    """A row per `keys`, updated by each batch: from an aggregate, or from changes of the keys.

    recompute: for aggregates that must be right after late rows. For every bucket with new rows, `transform` gets all
        rows of the source in that bucket, as of the end version of the batch. A replay has the same result. The
        bucket is one of the keys. None: each batch reads all rows of the source. This suits small tables where a late
        row changes later results, such as a running balance.
    reach_minutes: with `recompute`, how far outside its bucket a row looks for others, such as its partners in a join
        or its session. `transform` also gets the source rows that lie so far outside the buckets, and a new row
        recomputes all buckets within its reach. Rows that are no longer computed for a bucket are deleted.
    in_windows: no stream runs. Each maintenance window of the table merges the new rows of its source.
    sequence_by: the rows of the source are changes of the keys, and this column of the table orders them. Changes may
        arrive in any order and repeatedly.
    deletes: a SQL condition over the columns that `transform` returns: the change deletes its key.
    truncates: the same: the change deletes all keys. Its own key does not matter. Without this condition, such a change
        goes to the quarantine, because it has no key.
    scd: 1: the table holds the latest row of each key. 2: it holds the history of each key, with `valid_from` and
        `valid_to` in the type of `sequence_by`, and `is_current`.
    tracked: with scd=2, a change begins a new row only if one of these columns differs. None: if it changes any column.
    partial: with scd=1, a change sets only the columns in which it is not NULL.
    watermark: with sequence_by and scd=1, how late a change may arrive. Deletes that are older are forgotten. Without
        it all deletes are kept, by key and sequence, because an earlier change may arrive at any time.
    """

    upserts: ClassVar[bool] = True
    keys: tuple[str, ...]
    recompute: Bucket | None = None
    in_windows: bool = False
    sequence_by: str | None = None
    deletes: str | None = None
    truncates: str | None = None
    scd: int = 1
    tracked: tuple[str, ...] | None = None
    partial: bool = False
    reach_minutes: float | None = None
    watermark: Watermark | None = None

    @property
    def merges_changes(self) -> bool:
        return self.sequence_by is not None

    @property
    def is_recomputed(self) -> bool:
        return self.sequence_by is None

    @property
    def recomputes_all(self) -> bool:
        return self.is_recomputed and self.recompute is None

    @property
    def identified_by(self) -> tuple[str, ...]:
        return self.keys

    @property
    def reach_seconds(self) -> float:
        return 60 * (self.reach_minutes or 0)

    @property
    def identity(self) -> dict[str, Any]:
        bucket = self.recompute
        identity = {
            "mode": type(self).__name__,
            "keys": list(self.keys),
            "bucket": bucket and [bucket.name, bucket.of, bucket.unit],
        }
        return identity | ({"sequence_by": self.sequence_by, "scd": self.scd} if self.merges_changes else {})


@dataclass(frozen=True)
class Replace(WriteMode):
    """A materialized view: refreshed from Delta tables in one atomic commit, incrementally where that is exact.

    `transform` gets each of several sources as the parameter of its name. In SQL, that name is a view.
    """

    replaces: ClassVar[bool] = True
