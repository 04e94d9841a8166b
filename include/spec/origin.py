"""Sources of a table, and the parsers of their rows. `include.spec` exports both."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True)
class FileFormat:
    """What a declaration may say of a format of files.

    is_typed: its files say the types of their columns; else all columns are STRING. options: fields of `Files` that
        only some formats know. required: those of them that have no default.
    """

    is_typed: bool = False
    options: tuple[str, ...] = ()
    required: tuple[str, ...] = ()


# docs/guides/add-a-format.md says how to add one.
FORMATS = {
    "csv": FileFormat(options=("header", "separator", "quote", "escape", "comment")),
    "json": FileFormat(options=("multi_line",)),
    "text": FileFormat(),
    "parquet": FileFormat(is_typed=True),
    "orc": FileFormat(is_typed=True),
    "avro": FileFormat(is_typed=True),
    "fixed_width": FileFormat(options=("widths",), required=("widths",)),
}
# Columns that identify the origin of a row: a record of a file, or of a topic.
ORIGIN = ("_filename", "_index", "topic", "partition", "offset")
# Columns of a quarantine that say which row of the source could not be processed, and why.
FAILED_REASON, FAILED_RECORD = "_failed_reason", "_failed_record"
NEW_COLUMNS = ("add", "rescue", "fail", "ignore")
# Of Debezium: units of integer times, forms of bytes, and what stands for a value that the database did not send.
INTEGER_TIMES = ("micros", "millis", "nanos", "days")
BINARY_FORMS = ("base64", "base64-url-safe", "hex")
NOT_SENT = "__debezium_unavailable_value"
EVOLUTIONS = ("follow", "refuse", "fail")

# The columns of Spark's Kafka source with includeHeaders=true.
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
# The columns for values that begin with the header of a schema registry.
KAFKA_SCHEMA_WITH_IDS = f"""{KAFKA_SCHEMA.rstrip()},
    schema_id INT COMMENT 'of the schema its value was written with; NULL where the value has no such header'
"""

# The columns that a table fed by files has in addition to the columns of its files.
FILES_SCHEMA = """
    _filename STRING COMMENT 'the file it came in, below the folder of the source',
    _index BIGINT COMMENT 'its place among the records of that file, from 0',
    _rescued_data STRING COMMENT 'JSON: what has no column; under _record a record that does not fit its file'
"""


# The columns that the change data feed of a Delta table adds to the columns of the table.
CHANGE_SCHEMA = """
    _change_type STRING COMMENT 'insert, update_preimage, update_postimage or delete',
    _commit_version BIGINT COMMENT 'the version of the source in which it happened',
    _commit_timestamp TIMESTAMP COMMENT 'when that version was committed'
"""


class AnySource:
    """What every source answers. One that lacks an option has the value that stands here."""

    reads_topics: ClassVar[bool] = False
    reads_files: ClassVar[bool] = False
    reads_table: ClassVar[bool] = False
    # The measure of what is unread.
    unit: ClassVar[str] = "versions"
    # The columns that a table has in addition to those that its file declares, as DDL.
    added_schema: ClassVar[str] = ""
    table: str = ""
    changes: bool = False
    since_version: int | None = None
    since: str | None = None
    wait: bool = False
    schema_ids: bool = False
    cluster: str | None = None

    @property
    def is_pinned(self) -> bool:
        """Whether it is read at one version, whatever is committed later."""
        return False

    @property
    def begins_late(self) -> bool:
        """Whether it leaves out what its source held before a version or time."""
        return self.since is not None or self.since_version is not None

    @property
    def names(self) -> tuple[str, ...]:
        """The topics by name; empty if the source has a pattern, or is no Kafka."""
        return ()

    @property
    def parts(self) -> tuple[str, ...]:
        """What it reads, one by one, as far as its declaration names it: two flows must not share a part."""
        return ()


@dataclass(frozen=True)
class Kafka(AnySource):
    """All records of one or several topics, from the first offset on, with the columns of `KAFKA_SCHEMA`.

    topics: one topic, or several.
    pattern: instead of topics, a regular expression for complete topic names. It must mean the same in Java and Python.
        A topic that is added or matches later is read from its first offset.
    max_offsets: maximum number of records in a batch, over all topics.
    schema_ids: values begin with the header of a schema registry: byte 0, then the schema id in four bytes. The id gets
        its own column (`KAFKA_SCHEMA_WITH_IDS`); the value stays unchanged.
    cluster: the name of its Kafka cluster, in lowercase letters, digits and `_`. None: the cluster of `SLUICE_KAFKA`.
    """

    reads_topics: ClassVar[bool] = True
    unit: ClassVar[str] = "records"
    topics: str | tuple[str, ...] = ()
    pattern: str | None = None
    max_offsets: int = 1_000_000
    schema_ids: bool = False
    cluster: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.topics,) if isinstance(self.topics, str) else tuple(self.topics)

    @property
    def schema(self) -> str:
        """The columns of its rows, as DDL."""
        return KAFKA_SCHEMA_WITH_IDS if self.schema_ids else KAFKA_SCHEMA

    @property
    def parts(self) -> tuple[str, ...]:
        cluster = f" of cluster '{self.cluster}'" if self.cluster else ""
        return tuple(f"topic '{name}'{cluster}" for name in self.names)

    def __str__(self) -> str:
        topics = f"topics like '{self.pattern}'" if self.pattern else "topic " + ", ".join(map(repr, self.names))
        return f"{topics} of cluster '{self.cluster}'" if self.cluster else topics


@dataclass(frozen=True)
class Delta(AnySource):
    """The rows that are appended to another table of the catalog, or its change data feed. For a view: all its rows.

    table: the table that it reads.
    changes: read the change data feed: the columns of the table and of `CHANGE_SCHEMA`. It begins with the current
        rows as inserts, and continues with each change. For a recomputed `Upsert`, the changes only identify the
        buckets to recompute, and `transform` gets rows of the table.
    since_version: begin with the rows of this version. since: begin with the first version at or after this time, for
        example "2026-03-01T00:00:00Z". Neither: begin with all rows of the table. Both apply only at the first start.
    version_as_of: for a view: read this version, whatever is committed later. timestamp_as_of: read the newest version
        that was committed at this time or before. VACUUM keeps the version while the table file declares it.
    wait: the first refresh of a view, and the first batch of a recomputed `Upsert`, wait until the flows above the
        table have read once what their sources held at that time.
    max_files: maximum number of data files in a batch. max_bytes: approximate size of a batch, at least one file. A
        version of the change data feed is never split.
    """

    reads_table: ClassVar[bool] = True
    table: str
    changes: bool = False
    since_version: int | None = None
    since: str | None = None
    max_files: int = 1_000
    max_bytes: int | None = None
    version_as_of: int | None = None
    timestamp_as_of: str | None = None
    # Not part of `repr`, by which older releases tell whether a definition has changed.
    wait: bool = field(default=True, repr=False)

    @property
    def parts(self) -> tuple[str, ...]:
        return (f"table '{self.table}'",)

    @property
    def is_pinned(self) -> bool:
        return self.version_as_of is not None or self.timestamp_as_of is not None


@dataclass(frozen=True)
class Files(AnySource):
    """Each new file of the folder `path`, exactly once, even if it arrives late, out of order or with an old date.

    path: relative to `SLUICE_LANDING`, absolute, or a URL. Subfolders are read, too. Names that begin with `.` or `_`
        are ignored: a writer should rename a file into place when it is complete. A file gets a row in the quarantine
        if it cannot be read, if it is gone, or if it changes after its discovery. A changed file is not read again.
    format: csv | json | text | fixed_width | parquet | orc | avro. All columns of CSV, JSON (one object a line) and
        text of fixed width are STRING. A line of text is a row with the STRING column `value`. Integers of other files
        are BIGINT. A name that Delta cannot store has `_` for blanks and each of `,;{}()=`.
    new_columns: action for a column that the table lacks: `add` it, `rescue` it into `_rescued_data`, `fail`, or
        `ignore` it. A table that declares no columns gets the columns of its first files.
    pattern: a pattern with `*` and `?` for file names.
    max_files: maximum number of files in a batch. max_bytes: maximum size of a batch instead, at least one file.
    header: whether the first record of a CSV file holds the column names. False: the declared columns apply in order.
    separator, quote, escape: of CSV, each one ASCII character. quote="": quotes are ordinary characters. escape: None:
        within quotes, a doubled quote stands for one.
    comment: lines of a CSV that begin with this character are left out. None: none are.
    multi_line: each JSON file holds documents of any number of lines, one after another or in an array.
    widths: of text of fixed width: by column, in the order of the line, its number of characters.
    """

    reads_files: ClassVar[bool] = True
    unit: ClassVar[str] = "files"
    added_schema: ClassVar[str] = FILES_SCHEMA
    path: str
    format: str
    new_columns: str = "add"
    pattern: str = "*"
    max_files: int = 1_000
    max_bytes: int | None = None
    header: bool = True
    # Not part of `repr`, by which older releases tell whether a definition has changed.
    separator: str = field(default=",", repr=False)
    quote: str = field(default='"', repr=False)
    escape: str | None = field(default=None, repr=False)
    comment: str | None = field(default=None, repr=False)
    multi_line: bool = field(default=False, repr=False)
    widths: Mapping[str, int] = field(default_factory=dict, repr=False, hash=False)


@dataclass(frozen=True)
class Registry:
    """The schema registry that `SLUICE_SCHEMA_REGISTRY` names. It knows the schema of each id, whatever its subject.

    record: the full name of the Avro record, for example "com.example.PageView", or the title of the JSON Schema. A
        value of another one is an error. None: any.
    evolution: what a schema may do that has other fields than `into`, or types that do not fit the columns.
        `follow`: it is read. Missing fields are NULL, and a value that does not fit its column is an error. `refuse`:
        each of its values is an error. `fail`: it ends the flow.
    """

    record: str | None = None
    evolution: str = "follow"


@dataclass(frozen=True)
class Json:
    """Typed columns from a JSON object in `column`, in addition to the columns of the source.

    into: names of JSON fields. Each becomes a column with the type in the schema of the table. A value that is not
        exactly one of the type becomes NULL, plus an entry in `_errors ARRAY<STRUCT<field, message>>`; so does a value
        that is no object. docs/guides/typed-values.md says which texts are values.
    header: skip the header of a schema registry, if the value has one.
    fails: end the flow on such an error, with a message that names the row and the field.
    registry: every value has that header, and is validated by the JSON Schema of its id. A value that breaks it is an
        error, and so is an id that the registry lacks.
    registered: the schemas by id that the registry gave; set by the flow.
    """

    column: str
    into: tuple[str, ...]
    header: bool = False
    fails: bool = False
    # Not part of `repr`, by which older releases tell whether a definition has changed.
    registry: Registry | None = field(default=None, repr=False)
    registered: Mapping[int, str] = field(default_factory=dict, repr=False)

    @property
    def schemas(self) -> Mapping[int, str]:
        return self.registered


@dataclass(frozen=True)
class Cast:
    """Typed columns from STRING columns of the same names.

    into: names of columns. Each gets the type in the schema of the table. A text that cannot be cast becomes NULL, plus
        an entry in `_errors ARRAY<STRUCT<field, message>>`.
    fails: end the flow on such an error, with a message that names the row and the field.
    """

    into: tuple[str, ...]
    fails: bool = False


@dataclass(frozen=True)
class Avro:
    """Typed columns from an Avro record in `column`, as for `Json`. A cast that loses information is an error.

    into: names of fields of the record, as for `Json`.
    schemas: Avro schemas (JSON) by id. Values begin with the header of a schema registry, and are read with the schema
        of that id. A field that this schema lacks becomes NULL.
    schema: instead, a single schema for values without a header.
    registry: reads the schemas of ids that `schemas` lacks from the registry, each once.
    fails: end the flow on an error, with a message that names the row and the field.

    A table whose schema declares `_rescued_data STRING` keeps the fields in it that `into` does not name, as JSON.
    Otherwise they are left out. All fields become NULL for an unknown id, a truncated record, trailing bytes, or a
    string of over 32 MB.
    """

    column: str
    into: tuple[str, ...]
    schemas: Mapping[int, str] = field(default_factory=dict)
    schema: str | None = None
    fails: bool = False
    # Not part of `repr`, by which older releases tell whether a definition has changed.
    registry: Registry | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Debezium:
    """Typed columns from a change of a database, an event of Debezium as JSON in `column`, with or without its schema.

    into: names of columns of the database table. Each gets the type in the schema of the table, as for `Json`, from the
        row after the change, or for a delete from the row before.
    sequence: the field of `source` that orders the changes, or several: `lsn` for PostgreSQL, `("file", "pos", "row")`
        for MySQL, `("change_lsn", "event_serial_no")` for SQL Server, `scn` for Oracle.
    integer_times: the unit of times that are integers: `micros`, `millis` with `time.precision.mode=connect`, `nanos`
        or `days`, for all columns or by column. Without it, a column of type DATE has days, another one microseconds.
        An event with its schema says the unit itself.
    fails: end the flow on an error, with a message that names the row and the field.
    unwrapped: values are rows, as the transformation `ExtractNewRecordState` leaves them. It has to add the operation
        and the sequence (`add.fields=op,source.lsn,source.ts_ms`), and deletes
        (`delete.tombstone.handling.mode=rewrite`, or `rewrite-with-tombstone`).
    tombstones: of unwrapped rows: a record without a value follows the row of a delete (`rewrite-with-tombstone`), and
        changes nothing. Otherwise it may be the delete itself, and has an entry in `_errors`.
    placeholder: what stands for a value that the database did not send: `unavailable.value.placeholder`.
    binary: the form of bytes: `base64`, `base64-url-safe` or `hex`, as `binary.handling.mode` says. Without it, they
        are in base64, and a text that may be hex has an entry in `_errors`, unless the event's schema says `bytes`.

    Adds these columns, for `Upsert` and `transform`: `_op STRING` (r: snapshot, c: insert, u: update, d: delete,
    t: truncate), `_sequence`, `_database_time TIMESTAMP`, and `_rescued_data STRING` with the fields of the row that
    `into` does not name, as JSON. They are stored if the schema declares them.

    `_sequence` is a BIGINT. It is a STRING, in which numbers have leading zeros, if `sequence` has several fields or
    the schema declares it so. A row of a snapshot that has no place gets one before all changes.

    A tombstone, a record without a value that follows a delete, has the `_op` tombstone and changes nothing. What is no
    change event has NULL in all columns, and an entry in `_errors`. A value that the database did not send, because it
    is large and unchanged, is NULL for a table with partial changes, and an error for others. Decimals are exact as
    text (`decimal.handling.mode=string`), and as bytes if the event has its schema.
    """

    column: str
    into: tuple[str, ...]
    sequence: str | tuple[str, ...] = "lsn"
    integer_times: str | Mapping[str, str] = "micros"
    fails: bool = False
    # Not part of `repr`, by which older releases tell whether a definition has changed.
    unwrapped: bool = field(default=False, repr=False)
    tombstones: bool = field(default=False, repr=False)
    placeholder: str = field(default=NOT_SENT, repr=False)
    binary: str | None = field(default=None, repr=False)

    @property
    def places(self) -> tuple[str, ...]:
        """The fields of `source` that order the changes."""
        return (self.sequence,) if isinstance(self.sequence, str) else self.sequence


Parse = Json | Avro | Cast | Debezium
Source = Kafka | Files | Delta
