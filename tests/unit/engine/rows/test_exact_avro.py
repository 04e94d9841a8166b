"""Each value of an Avro record is exact, or NULL with an entry in `_errors`, as `fastavro` reads it."""

import bz2
import io
import json
import lzma
import random
import uuid
import zlib
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from include.engine import struct_type
from include.engine.batch import batch_of_files
from include.engine.files import file_headers
from include.engine.rows import parse_avro
from include.engine.tables import create_table
from include.project.avro import AvroType, RefersToItself
from include.spec import Avro
from tests.support.flows import FULL
from tests.support.landing import Landing

COUNT = 20_000 if FULL else 600
EPOCH = datetime(1970, 1, 1)


def logical(type_: str, name: str, **more: int) -> dict[str, Any]:
    return {"type": type_, "logicalType": name, **more}


POINT = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "double"}, {"name": "y", "type": "long"}]}
# The name of a field: its type in Avro, and its column.
FIELDS: dict[str, tuple[Any, str]] = {
    "mixed": (["null", "string", "long", "double", "boolean"], "STRING"),
    "either": (["string", "long"], "BIGINT"),
    "price": (logical("bytes", "decimal", precision=20, scale=4), "DECIMAL(20,4)"),
    "rounded": (logical("bytes", "decimal", precision=20, scale=4), "DECIMAL(20,2)"),
    "number": ("double", "STRING"),
    "whole": ("double", "BIGINT"),
    "short": ("long", "INT"),
    "single": ("float", "DOUBLE"),
    "micros": (logical("long", "timestamp-micros"), "TIMESTAMP"),
    "millis": (["null", logical("long", "timestamp-millis")], "TIMESTAMP"),
    "nanos": (logical("long", "timestamp-nanos"), "TIMESTAMP"),
    "local": (logical("long", "local-timestamp-micros"), "TIMESTAMP_NTZ"),
    "day": (logical("int", "date"), "DATE"),
    "id": (logical("string", "uuid"), "STRING"),
    "code": ({"type": "fixed", "name": "Code", "size": 4}, "BINARY"),
    "suit": ({"type": "enum", "name": "Suit", "symbols": ["SPADES", "HEARTS"]}, "STRING"),
    "points": ({"type": "array", "items": POINT}, "STRING"),
    "place": ("Point", "STRUCT<x: DOUBLE, y: INT>"),
    "tags": ({"type": "array", "items": ["string", "long"]}, "ARRAY<STRING>"),
    "counts": ({"type": "map", "values": "long"}, "MAP<STRING, INT>"),
}
SCHEMA = {
    "type": "record",
    "name": "Row",
    "namespace": "com.example",
    "fields": [{"name": name, "type": type_} for name, (type_, _) in FIELDS.items()],
}
COLUMNS = ", ".join(f"{name} {type_}" for name, (_, type_) in FIELDS.items())


def generated(pick: random.Random) -> dict[str, Any]:
    def micros() -> int:
        border = pick.choice([-62_135_596_800_000_000, 253_402_300_800_000_000, 0])
        return border + pick.randrange(-3_000_000, 3_000_000)

    def real() -> float:
        return pick.choice([0.1, 5.0, 1e22, -0.0, 12345678.9, 1e-7, float("nan"), pick.uniform(-1e9, 1e9)])

    def long() -> int:
        return pick.choice([0, 2**31 - 1, 2**31, -(2**31), 2**53 + 1, -(2**63), pick.randrange(-100, 100)])

    def text() -> str:
        return pick.choice(["", "5", "5.0", "x", "\N{GRINNING FACE}", '"', "a\0b"])

    point = {"x": pick.uniform(-1, 1), "y": long()}
    return {
        "mixed": pick.choice([None, text(), long(), pick.uniform(-1e9, 1e9), True]),
        "either": pick.choice([text(), long()]),
        "price": Decimal(pick.randrange(-(10**20) + 1, 10**20)).scaleb(-4),
        "rounded": Decimal(pick.choice([15000, 15100, 15150, 15155])).scaleb(-4),
        "number": real(),
        "whole": real(),
        "short": long(),
        "single": pick.choice([0.1, 0.5, 16777216.0, -3.25]),
        "micros": micros(),
        "millis": pick.choice([None, micros() // 1_000]),
        "nanos": pick.choice([0, -1, 1_000, 999, -1_000, 1_772_366_400_123_456_000, 2**63 - 1]),
        "local": micros(),
        "day": pick.choice([0, 2_932_896, 2_932_897, -719_162, -719_163]),
        "id": str(uuid.UUID(int=pick.randrange(2**128))),
        "code": pick.randbytes(4),
        "suit": pick.choice(["SPADES", "HEARTS"]),
        "points": [point] * pick.randrange(3),
        "place": point,
        "tags": [pick.choice([text(), long()]) for _ in range(pick.randrange(3))],
        "counts": {text(): pick.randrange(3), "big": pick.choice([1, 2**31])},
    }


def moment(micros: int) -> datetime | None:
    try:
        return EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return None


def as_int(value: Any) -> int | None:
    try:
        number = Decimal(str(value))
    except ArithmeticError:
        return None
    return int(number) if number.is_finite() and number == int(number) and abs(number) < 2**63 + (number < 0) else None


def narrow(value: int) -> int | None:
    return value if -(2**31) <= value < 2**31 else None


def a_day(days: int) -> date | None:
    return date.fromordinal(days + 719_163) if 1 <= days + 719_163 <= date.max.toordinal() else None


def same(value: Any) -> Any:
    return value


def a_text(value: Any) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


# How plain Python makes the value of a column; None where that is not exact.
EXPECTED: dict[str, Callable[[Any], Any]] = {
    "either": as_int,
    "price": same,
    "rounded": lambda value: value if value * 100 == int(value * 100) else None,
    "whole": as_int,
    "short": narrow,
    "single": same,
    "micros": moment,
    "millis": lambda value: moment(value * 1_000),
    "nanos": lambda value: moment(value // 1_000) if value % 1_000 == 0 else None,
    "local": moment,
    "day": a_day,
    "id": str,
    "code": same,
    "suit": same,
    "place": lambda value: value if narrow(value["y"]) is not None else None,
    "tags": lambda values: [a_text(value) for value in values],
    "counts": lambda values: values if all(narrow(value) is not None for value in values.values()) else None,
}


def actual(name: str, value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    if name == "place" and value is not None:
        return value.asDict()
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


def test_each_value_is_exact_or_has_an_entry(spark: SparkSession):
    seed = random.SystemRandom().randrange(2**32)
    print(f"the seed of these records is {seed}")
    pick = random.Random(seed)
    # Without their logical types, times are the integers that they are in the file.
    plain = json.loads(json.dumps(SCHEMA))
    for field in plain["fields"]:
        for part in field["type"] if isinstance(field["type"], list) else [field["type"]]:
            if isinstance(part, dict) and part.get("logicalType") not in ("decimal", "uuid"):
                part.pop("logicalType", None)
    schema = fastavro.parse_schema(plain)
    values = []
    for _ in range(COUNT):
        record = generated(pick)
        payload = io.BytesIO()
        fastavro.schemaless_writer(payload, schema, record)
        values.append(payload.getvalue())
    rows = spark.createDataFrame([(number, value) for number, value in enumerate(values)], "n INT, value BINARY")
    parse = Avro("value", into=tuple(FIELDS), schema=json.dumps(SCHEMA))
    types = struct_type.from_ddl(COLUMNS)
    times = [name for name, (_, type_) in FIELDS.items() if type_ in ("TIMESTAMP", "TIMESTAMP_NTZ")]
    typed = parse_avro.typed(rows, SimpleNamespace(), parse, types)
    typed = typed.withColumns({name: F.col(name).cast("timestamp_ntz") for name in times})
    for row, value in zip(typed.orderBy("n").collect(), values, strict=True):
        record = fastavro.schemaless_reader(io.BytesIO(value), schema, None)
        wrong = {error.field for error in row["_errors"]}
        for name, written in record.items():
            found = actual(name, row[name])
            if name in ("mixed", "number"):
                # A double is the text that gives the same double.
                is_real = isinstance(written, float)
                is_equal = repr(float(found)) == repr(written) if is_real else found == a_text(written)
                assert (found is None) if written is None else is_equal, (name, written, found, seed)
                continue
            if name == "points":
                assert json.loads(found) == written, (written, found, seed)
                continue
            expected = None if written is None else EXPECTED[name](written)
            assert found == expected, (name, written, found, seed)
            assert (name in wrong) == (written is not None and expected is None), (name, written, seed)


def test_nested_and_rescued_values_keep_their_union_and_say_which_text_is_no_utf_8(spark: SparkSession):
    union = ["bytes", "long"]
    inner = {
        "type": "record",
        "name": "Inner",
        "fields": [{"name": "u", "type": union}, {"name": "t", "type": "string"}],
    }
    types = {"a": inner, "b": {"type": "array", "items": "string"}, "c": {"type": "map", "values": union}, "u": union}
    columns = [*types, *(f"r{name}" for name in types)]
    fields = [{"name": name, "type": types[name]} for name in types]
    fields += [{"name": f"r{name}", "type": "Inner" if name == "a" else type_} for name, type_ in types.items()]
    schema = json.dumps({"type": "record", "name": "Row", "fields": fields})

    def text(content: bytes) -> bytes:
        return long(len(content)) + content

    def values(content: bytes, key: bytes) -> bytes:
        either = long(0) + text(content)
        items = long(1) + text(content) + long(0)
        return either + text(content) + items + long(1) + text(key) + either + long(0) + either

    contents = [(b"x", b"k"), (b"\xe9", b"k"), (b"x", b"\xe9"), ("\ufffd".encode(), b"k")]
    records = [values(content, key) * 2 for content, key in contents]
    rows = spark.createDataFrame([(n, record) for n, record in enumerate(records)], "n INT, value BINARY")
    parsed = parse_avro.typed(
        rows,
        SimpleNamespace(),
        Avro("value", into=tuple(types), schema=schema),
        struct_type.from_ddl(", ".join(f"{name} STRING" for name in (*types, parse_avro.RESCUED))),
    )
    found = parsed.orderBy("n").collect()

    def shown(content: str, key: str) -> dict[str, Any]:
        return {"a": {"u": content, "t": content}, "b": [content], "c": {key: content}, "u": content}

    stored = [shown("x", "k"), dict.fromkeys(types), shown("x", "k") | {"c": None}, shown("\ufffd", "k")]
    for row, expected in zip(found, stored, strict=True):
        actual = {name: json.loads(row[name]) if row[name] and name != "u" else row[name] for name in types}
        assert actual == expected
    rescued = [shown("x", "k"), shown("\u00e9", "k"), shown("x", "\ufffd"), shown("\ufffd", "k")]
    expected_rescue = [{f"r{name}": value for name, value in row.items()} for row in rescued]
    assert [json.loads(row[parse_avro.RESCUED]) for row in found] == expected_rescue
    assert [sorted(error.field for error in row["_errors"]) for row in found] == [[], sorted(columns), ["c", "rc"], []]


@pytest.mark.parametrize(
    "type_",
    ['["null", "Node"]', '{"type": "array", "items": "Node"}', '{"type": "map", "values": ["Node", "string"]}'],
)
def test_a_schema_that_refers_to_itself_is_refused_by_its_name(type_: str):
    text = f'{{"type": "record", "name": "Node", "namespace": "a.b", "fields": [{{"name": "next", "type": {type_}}}]}}'
    with pytest.raises(RefersToItself, match="a.b.Node"):
        AvroType.of(text)


def test_a_type_that_is_used_twice_does_not_refer_to_itself():
    fields = [{"name": "first", "type": POINT}, {"name": "second", "type": ["null", "Point"]}]
    names = AvroType.of(json.dumps({"type": "record", "name": "Pair", "fields": fields})).fields
    assert names["first"] == names["second"]


SYNC = b"0123456789abcdef"


def long(value: int) -> bytes:
    value, content = value << 1 ^ value >> 63, b""
    while value > 0x7F:
        content, value = content + bytes([value & 0x7F | 0x80]), value >> 7
    return content + bytes([value])


def container(schema: dict[str, Any], records: list[bytes], codec: str = "null", compress: Callable = bytes) -> bytes:
    """An Avro file of one block, also in codecs for which Python has no library."""
    metadata = {b"avro.schema": json.dumps(schema).encode(), b"avro.codec": codec.encode()}
    header = b"".join(long(len(text)) + text for entry in metadata.items() for text in entry)
    block = compress(b"".join(records))
    content = b"Obj\x01" + long(len(metadata)) + header + long(0) + SYNC
    return content + (long(len(records)) + long(len(block)) + block + SYNC if records else b"")


def of_pyarrow(codec: str) -> Callable[[bytes], bytes]:
    return lambda content: pa.compress(content, codec=codec, asbytes=True)


CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": lambda content: zlib.compress(content, wbits=-15),
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstandard": of_pyarrow("zstd"),
    "snappy": lambda content: of_pyarrow("snappy")(content) + zlib.crc32(content).to_bytes(4, "big"),
}


def test_files_of_each_codec_are_read_and_what_no_column_holds_is_rescued(spark: SparkSession):
    landing = Landing("odd_avro_files")
    table = landing.table("avro")
    create_table.create(spark, table)
    nanos = logical("long", "timestamp-nanos")
    flat = {"type": "record", "name": "r", "fields": [{"name": "n", "type": "long"}, {"name": "at", "type": nanos}]}
    moment = 1_700_000_000_000_000_000
    records = [long(1) + long(moment), long(2) + long(moment + 1)]
    paths = [landing.drop(f"{codec}.avro", container(flat, records, codec, pack)) for codec, pack in CODECS.items()]
    paths.append(landing.drop("none.avro", container(flat, [])))
    inner = [{"name": "time", "type": logical("long", "timestamp-micros")}, {"name": "text", "type": "string"}]
    part = {"type": "record", "name": "part", "fields": inner}
    fields = [{"name": "part", "type": part}, {"name": "tags", "type": {"type": "array", "items": "string"}}]
    nested = {"type": "record", "name": "r", "fields": fields}
    values = [(0, b"a", b"b"), (2**60, b"a", b"b"), (0, b"\xe9", b"b"), (0, b"a", b"\xe9")]
    parts = [long(at) + long(1) + text + long(1) + long(1) + tag + long(0) for at, text, tag in values]
    paths.append(landing.drop("nested.avro", container(nested, parts)))
    # Times in nanoseconds within arrays and records.
    inner = [{"name": "at", "type": ["null", nanos]}, {"name": "x", "type": "int"}]
    spans = {"type": "array", "items": {"type": "record", "name": "span", "fields": inner}}
    deep = {"type": "record", "name": "r", "fields": [{"name": "spans", "type": spans}]}
    items = [[moment, None], [moment + 1]]
    spanned = [
        long(len(row)) + b"".join((long(0) if at is None else long(1) + long(at)) + long(7) for at in row) + long(0)
        for row in items
    ]
    paths.append(landing.drop("spans.avro", container(deep, spanned)))
    heads = file_headers.read_headers(table, map(str, paths))
    assert [head.problem for head in heads] == [""] * len(paths)
    rows = batch_of_files.read(spark, table, heads)
    times = F.col("at").cast("timestamp_ntz").cast("string").alias("at")
    spans = F.col("spans").cast("ARRAY<STRUCT<at: TIMESTAMP_NTZ, x: INT>>").cast("string")
    found = rows.select("_filename", "n", times, "part.text", "tags", spans, "_rescued_data")
    by_file: dict[str, list[tuple]] = {}
    for row in found.orderBy("_filename", "_index").collect():
        by_file.setdefault(row["_filename"], []).append(tuple(row)[1:])
    second = "2023-11-14 22:13:20"
    both = [(1, second, None, None, None, None), (2, second, None, None, None, f'{{"at":{moment + 1}}}')]
    beyond = '{"part":{"time":"+38504-08-17 21:30:06.846976","text":"a"}}'
    assert by_file == {f"{codec}.avro": both for codec in CODECS} | {
        "nested.avro": [
            (None, None, "a", ["b"], None, None),
            (None, None, None, ["b"], None, beyond),
            (None, None, None, ["b"], None, '{"part":{"time":"1970-01-01 00:00:00","text":"\u00e9"}}'),
            (None, None, "a", None, None, '{"tags":["\u00e9"]}'),
        ],
        "spans.avro": [
            (None, None, None, None, f"[{{{second}, 7}}, {{null, 7}}]", None),
            (None, None, None, None, None, f'{{"spans":[{{"at":{moment + 1},"x":7}}]}}'),
        ],
    }
