"""Reads a file whose rows replace those of a source: JSON lines, CSV, Parquet, or the messages of a topic, one a line.

Columns that the file lacks are NULL; columns about a row's origin contain its position in the file.
"""

import csv
import io
import json
from pathlib import Path

from pyarrow import ArrowInvalid, parquet
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from include.engine.batch import parse, writer_schemas
from include.engine.preview.sample import Sample
from include.engine.values import json_document
from include.engine.values.cast import cast
from include.errors import UsageError
from include.project.declaration import suggest

JSON_LINES = (".json", ".jsonl", ".ndjson")
PAYLOAD = "value"
NUMBER, ERRORS = "_number", "_wrong"
NESTED = (T.ArrayType, T.MapType, T.StructType)


def read(spark: SparkSession, file: Path, schema: T.StructType, may_have_more: bool) -> Sample:
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
