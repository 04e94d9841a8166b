"""Each value of an Avro record is exact, or NULL with an entry in `_errors`, as `fastavro` reads it."""

import io
import json
import random
import uuid
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import fastavro
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from include.engine import struct_type
from include.engine.batch import parse_avro
from include.project.avro import AvroType, RefersToItself
from include.spec import Avro
from tests.support.flows import FULL

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
