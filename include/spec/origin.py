"""Where a table's rows come from, and how they are typed: part of the vocabulary of `include.spec`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

FORMATS = ("csv", "json", "parquet")
# Columns that say where a row came from: its record of a topic, or of a file.
ORIGIN = ("_filename", "_index", "topic", "partition", "offset")
NEW_COLUMNS = ("add", "rescue", "fail", "ignore")

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

# What a table fed by files has beside the columns of its files.
FILES_SCHEMA = """
    _filename STRING COMMENT 'the file it came in, below the folder of the source',
    _index BIGINT COMMENT 'its place among the records of that file, from 0',
    _rescued_data STRING COMMENT 'JSON: what has no column; under _record a record that does not fit its file'
"""


# What the change feed of a Delta table says of each change, beside the row's own columns.
CHANGE_SCHEMA = """
    _change_type STRING COMMENT 'insert, update_preimage, update_postimage or delete',
    _commit_version BIGINT COMMENT 'the version of the source in which it happened',
    _commit_timestamp TIMESTAMP COMMENT 'when that version was committed'
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
    max_offsets: int = 1_000_000
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
class Files:
    """Each new file of the folder `path`, once, also where it comes late, out of order or with an old date.

    path: below `SLUICE_LANDING`, or absolute, or a URL; folders in it are gone into. Names that begin with `.` or `_`
        are not looked at, so whoever writes a file renames it into place when it is whole. A file that cannot be read,
        that is gone, or that changes after it was found and so is not read again, gets a row in the quarantine.
    format: csv | json | parquet. Columns of CSV and JSON (one object a line) are STRING, those of Parquet as they are.
    new_columns: what happens to a column the table has not: `add` it, `rescue` it into `_rescued_data`, `fail`, or
        `ignore` it. A table that declares no columns has those of its first files.
    pattern: what the name of a file must look like, with `*` and `?`.
    max_files: files a batch takes at most. max_bytes: bytes instead, and one file at the least.
    header: whether the first record of a CSV file names its columns; without, the declared ones are taken in order.
    """

    path: str
    format: str
    new_columns: str = "add"
    pattern: str = "*"
    max_files: int = 1_000
    max_bytes: int | None = None
    header: bool = True


@dataclass(frozen=True)
class Json:
    """Typed columns out of a JSON object in `column`.

    into: names of JSON fields; each becomes a column of the type the table's schema gives it. A value that cannot be
    cast, and a payload that is no JSON object, become NULL plus an entry in `_errors ARRAY<STRUCT<field, message>>`.
    The source's own columns stay beside them.
    header: a schema registry's header in front of the object is skipped, where there is one.
    fails: end the flow instead, naming the row and the field.
    """

    column: str
    into: tuple[str, ...]
    header: bool = False
    fails: bool = False


@dataclass(frozen=True)
class Cast:
    """Typed columns out of columns of text that have the same names.

    into: their names; each becomes of the type the table's schema gives it. A text that cannot be cast becomes NULL
    plus an entry in `_errors ARRAY<STRUCT<field, message>>`.
    fails: end the flow instead, naming the row and the field.
    """

    into: tuple[str, ...]
    fails: bool = False


@dataclass(frozen=True)
class Avro:
    """Typed columns out of an Avro record in `column`, as `Json` does; a cast that would lose something is an error.

    schemas: by id, as Avro's JSON. Values begin with a schema registry's header, and each is read with the schema it
    was written with; a field that this schema lacks is NULL.
    schema: instead, the one of values without a header.
    What is an error as a whole: an id nobody declared, a record that is cut off or goes on, one text of over 32 MB.
    fails: end the flow instead, naming the row and the field.
    """

    column: str
    into: tuple[str, ...]
    schemas: Mapping[int, str] = field(default_factory=dict)
    schema: str | None = None
    fails: bool = False


Source = Kafka | Files | Delta
