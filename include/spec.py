"""The vocabulary of a table file: plain frozen values that Airflow, Spark, a test and the console can all import.

A file `include/tables/<layer>/<name>.py` binds one `Table` to the name `TABLE`. `include.catalog` checks it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

LAYERS = ("bronze", "silver", "gold")
ACTIONS = ("quarantine",)
BUCKET_UNITS = ("minute", "hour", "day")

# What Spark's Kafka source delivers, headers included.
KAFKA_SCHEMA = """
    key BINARY COMMENT 'as the producer sent it',
    value BINARY COMMENT 'as the producer sent it; NULL is a tombstone',
    headers ARRAY<STRUCT<key: STRING, value: BINARY>> COMMENT 'in the order the producer sent them',
    topic STRING COMMENT 'Kafka topic',
    partition INT COMMENT 'Kafka partition',
    offset BIGINT COMMENT 'position in the partition',
    timestamp TIMESTAMP COMMENT 'when Kafka got it, or when it was made: see timestampType',
    timestampType INT COMMENT '0: set by the producer, 1: set by the broker'
"""


# What the change feed of a Delta table says of each change, beside the row's own columns.
CHANGE_SCHEMA = """
    _change_type STRING COMMENT 'insert, update_preimage, update_postimage or delete',
    _commit_version BIGINT COMMENT 'the version of the source in which it happened',
    _commit_timestamp TIMESTAMP COMMENT 'when that version was committed'
"""


@dataclass(frozen=True)
class Kafka:
    """Every record of `topic` from its first one on, as `KAFKA_SCHEMA`.

    max_offsets: records a batch takes at most.
    """

    topic: str
    max_offsets: int = 200_000


@dataclass(frozen=True)
class Delta:
    """The rows that are appended to another table of the catalog, or what happens to them.

    changes: its change feed, `CHANGE_SCHEMA` beside its columns: what it holds at the beginning as inserts, then each
        change. To a recomputed `Upsert` the changes tell which buckets are touched; `transform` sees the table's rows.
    since_version: begin with what this version brought; since: with the first version of this moment or later, such
        as "2026-03-01T00:00:00Z"; neither: with all that the table holds. They count once, when the flow begins.
    max_files: data files a batch takes at most. max_bytes: about how many bytes, at least one file. A version of the
        change feed is never divided.
    """

    table: str
    changes: bool = False
    since_version: int | None = None
    since: str | None = None
    max_files: int = 1_000
    max_bytes: int | None = None


@dataclass(frozen=True)
class Json:
    """Typed columns out of a JSON object in `column`.

    into: names of JSON fields; each becomes a column of the type the table's schema gives it. A value that cannot be
    cast, and a payload that is no JSON object, become NULL plus an entry in `_errors ARRAY<STRUCT<field, message>>`.
    The source's own columns stay beside them.
    """

    column: str
    into: tuple[str, ...]


@dataclass(frozen=True)
class Append:
    """Rows are added and never changed.

    unique: columns that identify a row; of several rows with one identity the first counts, also across batches.
    first_by: which row is first within one batch.
    """

    unique: tuple[str, ...] = ()
    first_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bucket:
    """A time bucket: the column `name` is the source's timestamp `of`, cut down to `unit` (minute, hour or day, UTC).

    The engine adds the column before `transform` sees the rows.
    """

    name: str
    of: str
    unit: str


@dataclass(frozen=True)
class Upsert:
    """One row per `keys`, kept current.

    recompute: an aggregate that must be right after late rows. For every bucket a batch touches, `transform` sees all
    rows the source holds for that bucket as of the batch's end version, so a replay comes out the same. The bucket is
    one of the keys.
    in_windows: no stream runs; what its source has gathered is merged whenever the table's window is open.
    """

    keys: tuple[str, ...]
    recompute: Bucket
    in_windows: bool = False


@dataclass(frozen=True)
class Expect:
    """A SQL condition every row should meet. NULL fails.

    otherwise: `quarantine` moves the row to `quarantine.<layer>_<name>`, with the names of the rules it broke.
    """

    name: str
    condition: str
    otherwise: str = "quarantine"


@dataclass(frozen=True)
class Maintenance:
    """How a table is kept in shape, in windows that no other writer shares.

    schedule: cron expression, UTC, at which `maintain.<table>` looks whether there is something to do; None: by hand.
    target_file_mb: the size compaction aims at.
    most_rewritten_mb: how much one window rewrites at most.
    time_travel_hours: for how long every version of the table stays readable.
    every_batches: a table that a stream upserts is compacted by that stream, after so many batches.
    most_held_hours: how long a stopped flow may keep VACUUM from its work before people are told.
    longest_minutes: a window that is not over by then is ended by force; nor is one waited for any longer.
    """

    schedule: str | None = "23 * * * *"
    target_file_mb: float = 128
    most_rewritten_mb: float = 10_240
    time_travel_hours: float = 168
    every_batches: int = 200
    longest_minutes: float = 60
    most_held_hours: float = 720

    @property
    def retention_seconds(self) -> float:
        """For how long VACUUM keeps what was removed: the promise, and an hour, as a window dates its removals when it
        begins and VACUUM looks at the clock when it deletes; no more than twice the promise.
        """
        promised_seconds = self.time_travel_hours * 3600
        return promised_seconds + min(3600, promised_seconds)


@dataclass(frozen=True, kw_only=True)
class Table:
    """A streaming table, or a step on the way to one.

    name: `<layer>.<name>`, the same as the file's path.
    schema: Spark DDL of the stored columns. A table fed by Kafka without a transform has `KAFKA_SCHEMA`.
    transform: source rows to table rows, deterministic: a replayed batch must come out the same. The rows are a
        `pyspark.sql.DataFrame`; import `pyspark.sql.functions` inside the function. Or a SQL query, which calls them
        `source`. Without one, the columns of `schema` are taken by name.
    temporary: a named step that is never stored: each table that reads it does it first, in its own batch.
    interval_seconds: the shortest time from the start of one batch to the start of the next.
    driver: flows that name the same driver share one Spark process.
    owner: who answers for the table; stored as the property `sluice.owner`.
    cluster_by, partition_by: columns by which its files are laid out; one of the two.
    properties: Delta table properties, over Sluice's own.
    steps: the temporary steps between `source` and this table, in their order; the catalog fills them in.
    """

    name: str
    source: Kafka | Delta
    comment: str
    schema: str = KAFKA_SCHEMA
    parse: Json | None = None
    transform: Callable[[Any], Any] | str | None = None
    write: Append | Upsert = Append()
    expect: tuple[Expect, ...] = ()
    maintain: Maintenance = Maintenance()
    interval_seconds: float = 2.0
    driver: str = "main"
    temporary: bool = False
    owner: str | None = None
    cluster_by: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    properties: dict[str, str] = field(default_factory=dict)
    steps: tuple["Table", ...] = ()

    @property
    def layer(self) -> str:
        return self.name.split(".")[0]

    @property
    def quarantine(self) -> str:
        """The table that gets the rows which break a rule."""
        return f"quarantine.{self.name.replace('.', '_')}"

    @property
    def merges_in_windows(self) -> bool:
        """Whether its flow runs in its windows only."""
        return isinstance(self.write, Upsert) and self.write.in_windows
