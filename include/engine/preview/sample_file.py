"""A file whose rows stand for those of a source: JSON lines, CSV or Parquet, or the messages of a topic, one a line.

A column that the file has not is NULL; one that says where a row came from tells its place in the file.
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

from include.engine.batch import parse, schema_registry
from include.engine.preview.sample import Sample
from include.errors import UsageError
from include.validation.declaration import suggest

JSON_LINES = (".json", ".jsonl", ".ndjson")
PAYLOAD = "value"
NUMBER, WRONG = "_number", "_wrong"
NESTED = (T.ArrayType, T.MapType, T.StructType)


def read(spark: SparkSession, file: Path, schema: T.StructType, may_have_more: bool) -> Sample:
    """schema: of the source. may_have_more: other columns are texts of it too. Raises UsageError for a wrong file."""
    try:
        rows = _rows(spark, file, schema, may_have_more)
    except OSError as error:
        raise UsageError(f"--from-file is {file}, which cannot be read ({error}): name another file") from error
    return Sample(_filled(rows, file, schema).drop(NUMBER), f"the rows of {file}")


def _rows(spark: SparkSession, file: Path, schema: T.StructType, may_have_more: bool) -> DataFrame:
    """The columns that the file has, and the number of each row."""
    if file.suffix == ".parquet":
        return _parquet(spark, file, schema, may_have_more)
    content = file.read_bytes()
    if file.suffix == ".csv":
        names, records = _csv(file, content)
        _require_known(file, names, schema, may_have_more)
        return _typed(_frame(spark, names, records), file, schema)
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
    return _typed(_objects(spark, lines, keys), file, schema)


def _parquet(spark: SparkSession, file: Path, schema: T.StructType, may_have_more: bool) -> DataFrame:
    try:
        # Spark would log a page of text about a wrong one.
        parquet.read_schema(file)
        rows = spark.read.parquet(f"file://{file.absolute()}")
        _require_known(file, rows.columns, schema, may_have_more)
        kinds = {field.name: field.dataType for field in (*rows.schema, *schema)}
        columns = [F.col(f"`{name}`").cast(kinds[name]).alias(name) for name in rows.columns]
        return rows.select(F.monotonically_increasing_id().alias(NUMBER), *columns)
    except (ArrowInvalid, PySparkException) as error:
        why = next(iter(str(error).strip().splitlines()), "")
        raise UsageError(f"--from-file is {file}, which is no Parquet of the source's rows ({why}): mend it") from error


def _is_payload(schema: T.StructType) -> bool:
    """Whether a source delivers messages as they came."""
    return PAYLOAD in schema.fieldNames() and isinstance(schema[PAYLOAD].dataType, T.BinaryType)


def _keys(lines: list[bytes]) -> list[str] | None:
    """Of all objects; None where a line is none."""
    found: dict[str, None] = {}
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            return None
        if not isinstance(value, dict):
            return None
        found.update(dict.fromkeys(value))
    return list(found)


def _csv(file: Path, content: bytes) -> tuple[list[str], list[list[str | None]]]:
    """An empty cell is NULL."""
    try:
        records = list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise UsageError(f"--from-file is {file}, which is no CSV in UTF-8 ({error}): mend it") from error
    names, *others = [record for record in records if record] or [[]]
    for number, record in enumerate(others, start=1):
        if len(record) != len(names):
            raise UsageError(
                f"--from-file is {file}, whose record {number} has {len(record)} cells where its header has "
                f"{len(names)}: mend it"
            )
    return names, [[cell or None for cell in record] for record in others]


def _frame(spark: SparkSession, names: list[str], records: list[list[str | None]]) -> DataFrame:
    """The records as columns of text."""
    fields = [T.StructField(NUMBER, T.LongType()), *[T.StructField(name, T.StringType()) for name in names]]
    return spark.createDataFrame([(number, *record) for number, record in enumerate(records)], T.StructType(fields))


def _objects(spark: SparkSession, lines: list[bytes], keys: list[str]) -> DataFrame:
    """The objects as columns of text; what is nested, as JSON."""
    texts = [(number, line.decode(errors="replace")) for number, line in enumerate(lines)]
    rows = spark.createDataFrame(texts, f"{NUMBER} BIGINT, _line STRING")
    fields = T.StructType([T.StructField(key, T.StringType()) for key in keys])
    rows = rows.withColumn("_object", F.from_json("_line", fields))
    return rows.select(NUMBER, *[F.col(f"_object.`{key}`").alias(key) for key in keys])


def _typed(rows: DataFrame, file: Path, schema: T.StructType) -> DataFrame:
    """Columns of text as the source has them. Raises UsageError where a text is none of its type."""
    made: dict[str, Column] = {}
    errors = []
    for name in (name for name in rows.columns if name in schema.fieldNames()):
        raw, kind = F.col(f"`{name}`"), schema[name].dataType
        if isinstance(kind, NESTED):
            made[name] = F.from_json(raw, kind)
        elif isinstance(kind, T.BinaryType):
            made[name] = raw.cast("binary")
        else:
            made[name] = parse.cast(raw, kind.simpleString())
        errors.append(parse.cast_error(name, raw, made[name], kind.simpleString()))
    typed = rows.withColumns({**made, WRONG: parse.found(errors)})
    if wrong := typed.filter(F.size(WRONG) > 0).first():
        error, number = wrong[WRONG][0], wrong[NUMBER] + 1
        raise UsageError(
            f"--from-file is {file}, whose row {number} has a wrong '{error['field']}': {error['message']}: mend it"
        )
    return typed.drop(WRONG)


def _filled(rows: DataFrame, file: Path, schema: T.StructType) -> DataFrame:
    """All columns of the source, and those that only the file has."""
    names, number = set(schema.fieldNames()), F.col(NUMBER)
    moment = F.timestamp_seconds(F.lit(file.stat().st_mtime))
    place: dict[str, Column] = {}
    if {"topic", "partition", "offset"} <= names:
        place |= {"topic": F.lit(file.name), "partition": F.lit(0), "offset": number}
    if _is_payload(schema):
        place |= {"timestamp": moment, "timestampType": F.lit(0)}
        place |= {"schema_id": schema_registry.schema_id(F.col(PAYLOAD))} if PAYLOAD in rows.columns else {}
    if {"_filename", "_index"} <= names:
        place |= {"_filename": F.lit(file.name), "_index": number}
    if "_change_type" in names:
        place |= {"_change_type": F.lit("insert"), "_commit_version": F.lit(0), "_commit_timestamp": moment}
    missing = [field for field in schema if field.name not in rows.columns]
    return rows.withColumns({one.name: place.get(one.name, F.lit(None)).cast(one.dataType) for one in missing})


def _require_known(file: Path, names: list[str], schema: T.StructType, may_have_more: bool) -> None:
    known = schema.fieldNames()
    unknown = [name for name in names if name not in known]
    if unknown and not may_have_more:
        raise UsageError(
            f"--from-file is {file}, whose column '{unknown[0]}' the source has not: {suggest(unknown[0], known)}"
        )
