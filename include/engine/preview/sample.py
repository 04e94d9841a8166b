"""Samples the newest rows of a flow's source; reads little and writes nothing."""

import csv
import io
import json
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from pyarrow import ArrowInvalid, parquet
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from include.checkpoints import landing_folder
from include.checkpoints.landing_folder import FolderFile
from include.delta import versions
from include.delta.backlog import StreamSource
from include.delta.delta_log import DeltaLog, LiveFile
from include.engine.rows import parse, writer_schemas
from include.engine.sources import delta_reader, kafka_reader
from include.engine.values import json_document
from include.engine.values.cast import cast
from include.errors import Unreachable, UsageError
from include.kafka import broker, cluster
from include.lake import locations
from include.project.declaration import suggest
from include.project.sources import CHANGE_FEED_PROPERTY
from include.spec import Delta, Files, Flow, Kafka

MOST_TABLE_FILES = 200
MOST_VERSIONS = 100
# Files are read completely, as the flow reads them.
MOST_LANDED_FILES = 5
MOST_LANDED_BYTES = 64_000_000


@dataclass(frozen=True)
class Sample:
    """Some rows of a source, with its columns. what: a phrase that names them."""

    rows: DataFrame
    what: str


def newest(spark: SparkSession, flow: Flow, count: int) -> Sample:
    """Returns about `count` of the source's newest rows. Raises Unreachable if the source does not respond or exist."""
    if flow.source.reads_topics:
        return _sample_topics(spark, flow.source_as(Kafka), count)
    sample_rows = _sample_changes if flow.source.changes else _sample_table
    return sample_rows(spark, flow, flow.source_as(Delta), count)


def log_of(flow: Flow, source: Delta) -> DeltaLog:
    """Returns the Delta log of a source. Raises Unreachable if it is not stored yet."""
    if not locations.is_stored(source.table):
        raise Unreachable(
            f"{flow.flow} reads {source.table}, which is not stored yet: start the flow {source.table} first, or give "
            f"rows of it in a file, --from-file"
        )
    return DeltaLog(locations.table_path(source.table))


def landed(table: Flow) -> list[FolderFile]:
    """Returns the newest files of the table's folder. Raises Unreachable if the folder does not exist."""
    newest_files: list[FolderFile] = []
    for file in sorted(
        landing_folder.files_in_folder(table.source_as(Files)).values(), key=lambda file: file.modified_ms, reverse=True
    ):
        if newest_files and (sum(chosen.bytes for chosen in newest_files) + file.bytes > MOST_LANDED_BYTES):
            break
        newest_files.append(file)
    return newest_files[:MOST_LANDED_FILES]


def _sample_topics(spark: SparkSession, source: Kafka, count: int) -> Sample:
    topics = broker.Topics(cluster.of(source))
    ranges = {
        (topic, partition): range_
        for topic in topics.names(source)
        for partition, range_ in topics.offsets(topic).items()
    }
    shares = _shares({key: end - begin for key, (begin, end) in ranges.items()}, count)
    begin_offsets: dict[str, dict[int, int]] = {}
    for (topic, partition), share in shares.items():
        begin_offsets.setdefault(topic, {})[partition] = ranges[topic, partition][1] - share
    if not begin_offsets:
        return Sample(spark.createDataFrame([], source.schema), f"{source}, which holds no records yet")
    rows = kafka_reader.records_from(spark, source, begin_offsets).limit(count)
    return Sample(rows, f"the newest records of each partition of {source}")


def _shares(sizes: dict[tuple[str, int], int], count: int) -> dict[tuple[str, int], int]:
    """Returns how many records of each partition to read: equally many, and more of others if a partition holds
    fewer.
    """
    shares: dict[tuple[str, int], int] = {}
    fewest_first = sorted((size, key) for key, size in sizes.items() if size)
    for index, (size, key) in enumerate(fewest_first):
        missing = count - sum(shares.values())
        if share := min(size, ceil(missing / (len(fewest_first) - index))):
            shares[key] = share
    return shares


def _sample_table(spark: SparkSession, flow: Flow, source: Delta, count: int) -> Sample:
    log = log_of(flow, source)
    rows = _newest_rows(spark, log, source.table, count)
    return Sample(rows, f"rows of the newest files of {source.table}, version {log.newest}")


def _newest_rows(spark: SparkSession, log: DeltaLog, table: str, count: int) -> DataFrame:
    newest_files: list[LiveFile] = []
    for file in sorted(log.state.live, key=lambda file: (file.modified_at, file.path), reverse=True):
        if sum(chosen.rows or 0 for chosen in newest_files) >= count or len(newest_files) == MOST_TABLE_FILES:
            break
        newest_files.append(file)
    if not newest_files:
        return spark.read.format("delta").load(str(log.table)).limit(0)
    return delta_reader.rows_of_files(spark, table, [file.path for file in newest_files]).limit(count)


def _sample_changes(spark: SparkSession, flow: Flow, source: Delta, count: int) -> Sample:
    log = log_of(flow, source)
    versions.require_change_feed(flow.flow, source)
    first = _first_change(log, count)
    if first is None:
        rows = _newest_rows(spark, log, source.table, count)
        # A stream of the change feed that begins now reads the source's rows like this.
        change_columns = {
            "_change_type": F.lit("insert"),
            "_commit_version": F.lit(log.newest).cast("bigint"),
            "_commit_timestamp": F.timestamp_seconds(F.lit(log.commit(log.newest).timestamp)),
        }
        what = f"rows of the newest files of {source.table}, version {log.newest}, as inserts: it keeps no change yet"
        return Sample(rows.withColumns(change_columns), what)
    reader = spark.read.format("delta").option("readChangeFeed", "true")
    changes = reader.option("startingVersion", first).option("endingVersion", log.newest).load(str(log.table))
    rows = changes.orderBy(F.desc("_commit_version")).limit(count)
    return Sample(rows, f"the newest changes of {source.table}, versions {first} to {log.newest}")


def _first_change(log: DeltaLog, count: int) -> int | None:
    """Returns the version from which the feed keeps at least `count` changes, or all that it keeps; None if it has
    none.
    """
    feed, first, rows = StreamSource(log, changes=True), None, 0
    for version in log.versions[: -MOST_VERSIONS - 1 : -1]:
        metadata_actions = [
            action["metaData"] for action in log.actions(version, b'"metaData"') if "metaData" in action
        ]
        if feed.brings(version):
            # The count is None if some file has no statistics.
            first, rows = version, feed.since(version).rows or 0
        if rows >= count or (metadata_actions and not _keeps_changes(log, version - 1)):
            break
    return first


def _keeps_changes(log: DeltaLog, version: int) -> bool:
    return version in log.versions and log.state_at(version).properties.get(CHANGE_FEED_PROPERTY) == "true"


JSON_LINES = (".json", ".jsonl", ".ndjson")
PAYLOAD = "value"
NUMBER, ERRORS = "_number", "_wrong"
NESTED = (T.ArrayType, T.MapType, T.StructType)


def read_file(spark: SparkSession, file: Path, schema: T.StructType, may_have_more: bool) -> Sample:
    """Returns the rows of the file with the columns of a source. may_have_more: allows other columns, as text.

    Raises UsageError for a wrong file.
    """
    try:
        rows = _rows(spark, file, schema, may_have_more)
    except OSError as error:
        raise UsageError(f"--from-file is {file}, which cannot be read ({error}): name another file") from error
    return Sample(_add_missing(rows, file, schema).drop(NUMBER), f"the rows of {file}")


def _rows(spark: SparkSession, file: Path, schema: T.StructType, may_have_more: bool) -> DataFrame:
    """Returns the columns of the file and `_number`, the number of each row."""
    if file.suffix == ".parquet":
        return _parquet(spark, file, schema, may_have_more)
    content = file.read_bytes()
    if file.suffix == ".csv":
        names, records = _csv(file, content)
        _require_known(file, names, schema, may_have_more)
        return _cast_columns(_text_columns(spark, names, records), file, schema)
    lines = [line for line in content.splitlines() if line.strip()]
    keys = _keys(lines)
    if _is_payload(schema) and (keys is None or not {PAYLOAD} <= set(keys) <= set(schema.fieldNames())):
        messages = [(number, bytearray(line)) for number, line in enumerate(lines)]
        return spark.createDataFrame(messages, f"{NUMBER} BIGINT, {PAYLOAD} BINARY")
    if file.suffix not in JSON_LINES:
        raise UsageError(f"--from-file is {file}: name a file that ends in .json, .jsonl, .csv or .parquet")
    if keys is None:
        raise UsageError(f"--from-file is {file}, of which a line is no JSON object: write one object a line")
    _require_known(file, keys, schema, may_have_more)
    return _cast_columns(_object_columns(spark, lines, keys), file, schema)


def _parquet(spark: SparkSession, file: Path, schema: T.StructType, may_have_more: bool) -> DataFrame:
    try:
        # Spark logs a page of text about a wrong file.
        parquet.read_schema(file)
        rows = spark.read.parquet(f"file://{file.absolute()}")
        _require_known(file, rows.columns, schema, may_have_more)
        types = {field.name: field.dataType for field in (*rows.schema, *schema)}
        columns = [F.col(f"`{name}`").cast(types[name]).alias(name) for name in rows.columns]
        return rows.select(F.monotonically_increasing_id().alias(NUMBER), *columns)
    except (ArrowInvalid, PySparkException) as error:
        reason = next(iter(str(error).strip().splitlines()), "")
        raise UsageError(
            f"--from-file is {file}, which is no Parquet of the source's rows ({reason}): fix it"
        ) from error


def _is_payload(schema: T.StructType) -> bool:
    """Whether the source delivers raw messages."""
    return PAYLOAD in schema.fieldNames() and isinstance(schema[PAYLOAD].dataType, T.BinaryType)


def _keys(lines: list[bytes]) -> list[str] | None:
    """Returns the keys of all objects; None if a line is no object."""
    keys: dict[str, None] = {}
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            return None
        if not isinstance(value, dict):
            return None
        keys.update(dict.fromkeys(value))
    return list(keys)


def _csv(file: Path, content: bytes) -> tuple[list[str], list[list[str | None]]]:
    """Returns the header and the records; empty cells are None."""
    try:
        records = list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise UsageError(f"--from-file is {file}, which is no CSV in UTF-8 ({error}): fix it") from error
    names, *others = [record for record in records if record] or [[]]
    for number, record in enumerate(others, start=1):
        if len(record) != len(names):
            raise UsageError(
                f"--from-file is {file}, whose record {number} has {len(record)} cells where its header has "
                f"{len(names)}: fix it"
            )
    return names, [[cell or None for cell in record] for record in others]


def _text_columns(spark: SparkSession, names: list[str], records: list[list[str | None]]) -> DataFrame:
    """Returns the records as columns of text."""
    fields = [T.StructField(NUMBER, T.LongType()), *[T.StructField(name, T.StringType()) for name in names]]
    return spark.createDataFrame([(number, *record) for number, record in enumerate(records)], T.StructType(fields))


def _object_columns(spark: SparkSession, lines: list[bytes], keys: list[str]) -> DataFrame:
    """Returns the objects as columns of text; nested values are JSON."""
    texts = [(number, line.decode(errors="replace")) for number, line in enumerate(lines)]
    rows = spark.createDataFrame(texts, f"{NUMBER} BIGINT, _line STRING")
    fields = T.StructType([T.StructField(key, T.StringType()) for key in keys])
    rows = json_document.read(rows, F.col("_line"), "_object", fields)
    return rows.select(NUMBER, *[F.col(f"_object.`{key}`").alias(key) for key in keys])


def _cast_columns(rows: DataFrame, file: Path, schema: T.StructType) -> DataFrame:
    """Casts columns of text to the types of the source. Raises UsageError if a text has no such value."""
    columns: dict[str, Column] = {}
    errors = []
    for name in (name for name in rows.columns if name in schema.fieldNames()):
        raw, type_ = F.col(f"`{name}`"), schema[name].dataType
        if isinstance(type_, NESTED):
            # As JSON, because PySpark declares `from_json` without MapType.
            columns[name] = F.from_json(raw, type_.json())
        elif isinstance(type_, T.BinaryType):
            columns[name] = raw.cast("binary")
        else:
            columns[name] = cast(raw, type_.simpleString())
        errors.append(parse.cast_error(name, raw, columns[name], type_.simpleString()))
    cast_rows = rows.withColumns({**columns, ERRORS: parse.error_list(errors)})
    if bad_row := cast_rows.filter(F.size(ERRORS) > 0).first():
        error, number = bad_row[ERRORS][0], bad_row[NUMBER] + 1
        raise UsageError(
            f"--from-file is {file}, whose row {number} has a wrong '{error['field']}': {error['message']}: fix it"
        )
    return cast_rows.drop(ERRORS)


def _add_missing(rows: DataFrame, file: Path, schema: T.StructType) -> DataFrame:
    """Adds the source's missing columns."""
    names, number = set(schema.fieldNames()), F.col(NUMBER)
    moment = F.timestamp_seconds(F.lit(file.stat().st_mtime))
    origin: dict[str, Column] = {}
    if {"topic", "partition", "offset"} <= names:
        origin |= {"topic": F.lit(file.name), "partition": F.lit(0), "offset": number}
    if _is_payload(schema):
        origin |= {"timestamp": moment, "timestampType": F.lit(0)}
        origin |= {"schema_id": writer_schemas.schema_id(F.col(PAYLOAD))} if PAYLOAD in rows.columns else {}
    if {"_filename", "_index"} <= names:
        origin |= {"_filename": F.lit(file.name), "_index": number}
    if "_change_type" in names:
        origin |= {"_change_type": F.lit("insert"), "_commit_version": F.lit(0), "_commit_timestamp": moment}
    missing = [field for field in schema if field.name not in rows.columns]
    return rows.withColumns({field.name: origin.get(field.name, F.lit(None)).cast(field.dataType) for field in missing})


def _require_known(file: Path, names: list[str], schema: T.StructType, may_have_more: bool) -> None:
    known = schema.fieldNames()
    unknown = [name for name in names if name not in known]
    if unknown and not may_have_more:
        raise UsageError(
            f"--from-file is {file}, whose column '{unknown[0]}' the source has not: {suggest(unknown[0], known)}"
        )
