"""The vocabulary of a table file: plain frozen values that Airflow, Spark, a test and the console can all import.

A file `include/tables/<layer>/<name>.py` binds one `Table` to the name `TABLE`. `include.catalog` checks it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
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
# The same, of values that begin with a schema registry's header.
KAFKA_SCHEMA_WITH_IDS = f"""{KAFKA_SCHEMA.rstrip()},
    schema_id INT COMMENT 'of the schema its value was written with; NULL where the value has no such header'
"""


@dataclass(frozen=True)
class Kafka:
    """Every record of one or several topics from their first one on, as `KAFKA_SCHEMA`.

    pattern: instead of topics, a regular expression for whole names. A topic that is added later, or matches later, is
    read from its beginning. Of what Java and Python each know, the pattern uses what both do.
    max_offsets: records a batch takes at most, of all topics together.
    schema_ids: values begin with a schema registry's header (byte 0, then the id of their schema in four bytes), and
    the id has a column of its own beside the untouched value: `KAFKA_SCHEMA_WITH_IDS`.
    """

    topics: str | tuple[str, ...] = ()
    pattern: str | None = None
    max_offsets: int = 200_000
    schema_ids: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The topics it names; none where it has a pattern."""
        return (self.topics,) if isinstance(self.topics, str) else tuple(self.topics)

    @property
    def schema(self) -> str:
        """The columns it delivers."""
        return KAFKA_SCHEMA_WITH_IDS if self.schema_ids else KAFKA_SCHEMA

    def __str__(self) -> str:
        return f"topics like '{self.pattern}'" if self.pattern else "topic " + ", ".join(map(repr, self.names))


@dataclass(frozen=True)
class Delta:
    """The rows that are appended to another table of the catalog.

    max_files: data files a batch takes at most.
    """

    table: str
    max_files: int = 1_000


@dataclass(frozen=True)
class Json:
    """Typed columns out of a JSON object in `column`.

    into: names of JSON fields; each becomes a column of the type the table's schema gives it. A value that cannot be
    cast, and a payload that is no JSON object, become NULL plus an entry in `_errors ARRAY<STRUCT<field, message>>`.
    The source's own columns stay beside them.
    header: a schema registry's header in front of the object is skipped, where there is one.
    """

    column: str
    into: tuple[str, ...]
    header: bool = False


@dataclass(frozen=True)
class Avro:
    """Typed columns out of an Avro record in `column`, as `Json` does; a cast that would lose something is an error.

    schemas: by id, as Avro's JSON. Values begin with a schema registry's header, and each is read with the schema it
    was written with; a field that this schema lacks is NULL.
    schema: instead, the one of values without a header.
    What is an error as a whole: an id nobody declared, a record that is cut off or goes on, one text of over 32 MB.
    """

    column: str
    into: tuple[str, ...]
    schemas: Mapping[int, str] = field(default_factory=dict)
    schema: str | None = None


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


Source = Kafka | Delta


@dataclass(frozen=True, kw_only=True)
class Table:
    """A streaming table, or one of its flows: the same table with one source.

    name: `<layer>.<name>`, the same as the file's path.
    source: one, or several by the names of their branches; each is a flow of its own, and all append to this table.
        The branch "" is the flow that bears the table's name, as the only flow does.
    schema: Spark DDL of the stored columns. A table fed by Kafka without a transform has `KAFKA_SCHEMA`.
    transform: source rows to table rows, deterministic: a replayed batch must come out the same. The rows are a
        `pyspark.sql.DataFrame`; import `pyspark.sql.functions` inside the function. Without one, the columns of
        `schema` are taken by name.
    interval_seconds: the shortest time from the start of one batch to the start of the next.
    driver: flows that name the same driver share one Spark process.
    properties: Delta table properties, over Sluice's own.
    branch: of one of several flows; the catalog sets it.
    """

    name: str
    source: Source | Mapping[str, Source]
    comment: str
    schema: str = KAFKA_SCHEMA
    parse: Json | Avro | None = None
    transform: Callable[[Any], Any] | None = None
    write: Append | Upsert = Append()
    expect: tuple[Expect, ...] = ()
    maintain: Maintenance = Maintenance()
    interval_seconds: float = 2.0
    driver: str = "main"
    properties: dict[str, str] = field(default_factory=dict)
    branch: str | None = None

    @property
    def flow(self) -> str:
        """The name of its flow: the table's, and that of the branch where it has one."""
        return f"{self.name}.{self.branch}" if self.branch else self.name

    @property
    def flows(self) -> tuple["Table", ...]:
        """Its flows, each with one source."""
        if not isinstance(self.source, Mapping):
            return (self,)
        return tuple(replace(self, source=source, branch=branch) for branch, source in self.source.items())

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


def table_of(flow: str) -> str:
    """The name of the table that the flow writes."""
    return ".".join(flow.split(".")[:2])
