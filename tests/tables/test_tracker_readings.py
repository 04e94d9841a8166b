"""silver.tracker_readings turns each message into one typed row, which names the fields that cannot be typed."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from include import catalog
from include.engine.rows.quality import with_violations
from include.engine.rows.transform import apply_transform
from include.spec import KAFKA_SCHEMA

TABLE = catalog.load().tables["silver.tracker_readings"]
GOOD_READING = {
    "device_id": "tracker-1",
    "time": "2026-03-01T12:00:01.500Z",
    "version": "1.0.4",
    "model": "Stride",
    "heart_bpm": 70,
    "kcal": 0.071,
}
MOMENT = datetime(2026, 3, 1, 12, 0, 1, 500_000)
FIELDS = ("device_id", "time", "version", "model", "heart_bpm", "kcal")
TYPED_ROW = {**GOOD_READING, "time": MOMENT, "kcal": Decimal("0.071")}
NULL_ROW = dict.fromkeys(FIELDS)
BOTH_RULES = ["identified", "plausible heart rate"]


def reading(**fields) -> bytes:
    return json.dumps({**GOOD_READING, **fields}).encode()


def no_json_object(shown: str) -> tuple:
    return NULL_ROW, [("value", f"'{shown[:80]}' is no JSON object")], BOTH_RULES


def invalid(field: str, shown: str, type_name: str, rules: list[str]) -> tuple:
    return {**TYPED_ROW, field: None}, [(field, f"'{shown}' is no {type_name}")], rules


def valid(**fields) -> tuple:
    return {**TYPED_ROW, **fields}, [], []


RATE, IDENTIFIED = ["plausible heart rate"], ["identified"]
INT, DECIMAL = "INT", "DECIMAL(9,3)"
TEXT = json.dumps(GOOD_READING)
HALF = "holds half of a surrogate pair, or the reserved character U+FDD0"

# payload -> (typed fields, _errors, broken rules)
CASES: dict[str, tuple[bytes | None, tuple]] = {
    "a good reading": (reading(), valid()),
    "a tombstone": (None, (NULL_ROW, [("value", "no value: a tombstone")], BOTH_RULES)),
    "an empty value": (b"", (NULL_ROW, [("value", "empty")], BOTH_RULES)),
    "blanks": (b"   ", (NULL_ROW, [("value", "empty")], BOTH_RULES)),
    "a line end": (b"\n", no_json_object("\n")),
    "a cut reading": (TEXT[:-5].encode(), no_json_object(TEXT)),
    "an array": (f"[{TEXT}]".encode(), no_json_object(f"[{TEXT}]")),
    "two readings in an array": (f"[{TEXT},{TEXT}]".encode(), no_json_object(f"[{TEXT}")),
    "an empty array": (b"[]", no_json_object("[]")),
    "a number": (b"5", no_json_object("5")),
    "a text": (b'"x"', no_json_object('"x"')),
    "a truth": (b"true", no_json_object("true")),
    "a null": (b"null", no_json_object("null")),
    "an empty object": (b"{}", (NULL_ROW, [], BOTH_RULES)),
    "a comment": (b"{/*x*/}", no_json_object("{/*x*/}")),
    "a number with a leading zero": (b'{"heart_bpm":070}', no_json_object('{"heart_bpm":070}')),
    "a byte order mark": (b"\xef\xbb\xbf" + reading(), valid()),
    "two byte order marks": (b"\xef\xbb\xbf" * 2 + reading(), no_json_object("\ufeff" * 2 + TEXT)),
    "a number of 4000 digits": (reading(heart_bpm=int("9" * 4000)), invalid("heart_bpm", "9" * 80, INT, RATE)),
    "100,000 brackets": (b"[" * 100_000, no_json_object("[" * 80)),
    "3,000 objects in each other": (b'{"model":' * 3_000, no_json_object('{"model":' * 9)),
    "a megabyte of nonsense": (b"x" * 1_000_000, no_json_object("x" * 80)),
    "a megabyte of model": (reading(model="x" * 1_000_000), valid(model="x" * 1_000_000)),
    # time
    "a time of day, which must not become today": (
        reading(time="12:30"),
        invalid("time", "12:30", "TIMESTAMP", IDENTIFIED),
    ),
    "a time of day with a T": (reading(time="T12:30"), invalid("time", "T12:30", "TIMESTAMP", IDENTIFIED)),
    "a word as time": (reading(time="yesterday"), invalid("time", "yesterday", "TIMESTAMP", IDENTIFIED)),
    "now as time": (reading(time="now"), invalid("time", "now", "TIMESTAMP", IDENTIFIED)),
    "seconds as time": (reading(time=1772366400), invalid("time", "1772366400", "TIMESTAMP", IDENTIFIED)),
    "a day that is none": (reading(time="2026-02-30"), invalid("time", "2026-02-30", "TIMESTAMP", IDENTIFIED)),
    "a year of five digits": (reading(time="12026-03-01"), invalid("time", "12026-03-01", "TIMESTAMP", IDENTIFIED)),
    "a year and nothing": (reading(time="2026-"), invalid("time", "2026-", "TIMESTAMP", IDENTIFIED)),
    "an object as time": (reading(time={"at": 1}), invalid("time", '{"at":1}', "TIMESTAMP", IDENTIFIED)),
    "a null as time": (reading(time=None), ({**TYPED_ROW, "time": None}, [], IDENTIFIED)),
    "another offset": (reading(time="2026-03-01T14:00:01.5+02:00"), valid()),
    "a zone by name": (reading(time="2026-03-01T13:00:01.5 Europe/Berlin"), valid()),
    "blanks around the time": (reading(time=" 2026-03-01 12:00:01.5 "), valid()),
    "a date alone": (reading(time="2026-03-01"), valid(time=datetime(2026, 3, 1))),
    "nanoseconds": (reading(time="2026-03-01T12:00:01.500000000Z"), valid()),
    "nanoseconds between microseconds": (
        reading(time="2026-03-01T12:00:01.500000999Z"),
        invalid("time", "2026-03-01T12:00:01.500000999Z", "TIMESTAMP", IDENTIFIED),
    ),
    "no seconds": (reading(time="2026-03-01T12:00Z"), valid(time=datetime(2026, 3, 1, 12))),
    "the year 10000 by its offset": (
        reading(time="9999-12-31T23:59:59-05:00"),
        invalid("time", "9999-12-31T23:59:59-05:00", "TIMESTAMP", IDENTIFIED),
    ),
    # heart_bpm
    "a word as rate": (reading(heart_bpm="fast"), invalid("heart_bpm", "fast", INT, RATE)),
    "a rate in quotes": (reading(heart_bpm="70"), valid()),
    "an empty rate": (reading(heart_bpm=""), invalid("heart_bpm", "", INT, RATE)),
    "a rate with decimals": (reading(heart_bpm=70.5), invalid("heart_bpm", "70.5", INT, RATE)),
    "a whole rate with a point": (reading(heart_bpm=70.0), valid()),
    "a whole rate with an exponent": (reading().replace(b": 70,", b": 7e1,"), valid()),
    "a rate beyond INT": (reading(heart_bpm=2**31), invalid("heart_bpm", "2147483648", INT, RATE)),
    "a rate beyond all": (reading(heart_bpm=10**70), invalid("heart_bpm", "1" + "0" * 70, INT, RATE)),
    "a truth as rate": (reading(heart_bpm=True), invalid("heart_bpm", "true", INT, RATE)),
    "an array as rate": (reading(heart_bpm=[70]), invalid("heart_bpm", "[70]", INT, RATE)),
    "an object as rate": (reading(heart_bpm={"bpm": 70}), invalid("heart_bpm", '{"bpm":70}', INT, RATE)),
    "NaN as rate": (reading(heart_bpm=float("nan")), invalid("heart_bpm", "NaN", INT, RATE)),
    "infinity as rate": (reading(heart_bpm=float("-inf")), invalid("heart_bpm", "-Infinity", INT, RATE)),
    "no rate": (reading(heart_bpm=None), ({**TYPED_ROW, "heart_bpm": None}, [], RATE)),
    "the lowest rate": (reading(heart_bpm=20), valid(heart_bpm=20)),
    "the highest rate": (reading(heart_bpm=250), valid(heart_bpm=250)),
    "a rate too low": (reading(heart_bpm=19), ({**TYPED_ROW, "heart_bpm": 19}, [], RATE)),
    "a rate too high": (reading(heart_bpm=251), ({**TYPED_ROW, "heart_bpm": 251}, [], RATE)),
    # kcal
    "words as energy": (reading(kcal="a lot"), invalid("kcal", "a lot", DECIMAL, [])),
    "a comma as point": (reading(kcal="1,5"), invalid("kcal", "1,5", DECIMAL, [])),
    "energy beyond its type": (reading(kcal=1_000_000), invalid("kcal", "1000000", DECIMAL, [])),
    "the most energy": (reading(kcal="999999.999"), valid(kcal=Decimal("999999.999"))),
    "NaN as energy": (reading(kcal=float("nan")), invalid("kcal", "NaN", DECIMAL, [])),
    "an array as energy": (reading(kcal=[]), invalid("kcal", "[]", DECIMAL, [])),
    "a whole number as energy": (reading(kcal=2), valid(kcal=Decimal("2.000"))),
    "an exponent": (reading(kcal="1e2"), valid(kcal=Decimal("100.000"))),
    "energy that its type would round": (reading(kcal=0.0716), invalid("kcal", "0.0716", DECIMAL, [])),
    "more zeros than its type holds": (reading().replace(b"0.071", b"0.07100000000000000000000"), valid()),
    "200,000 texts behind a number with zeros": (
        reading(notes=["x\n", "y"] * 100_000).replace(b"0.071", b"0.0710"),
        valid(),
    ),
    # text fields
    "a number with zeros as device": (
        reading().replace(b'"tracker-1"', b"12345678.90"),
        valid(device_id="12345678.90"),
    ),
    "numbers in an object as device": (
        reading().replace(b'"tracker-1"', b'{"a": [1.10, 1E400, -0, "1.10"]}'),
        valid(device_id='{"a":[1.10,1E400,-0,"1.10"]}'),
    ),
    "half of an emoji": (reading(model="\ud83d"), (NULL_ROW, [("value", f"'{TEXT[:80]}' {HALF}")], BOTH_RULES)),
    "a number as device": (reading(device_id=5), valid(device_id="5")),
    "an object as device": (reading(device_id={"a": [1, 2]}), valid(device_id='{"a":[1,2]}')),
    "a truth as model": (reading(model=True), valid(model="true")),
    "an empty device": (reading(device_id=""), valid(device_id="")),
    "no device": (reading(device_id=None), ({**TYPED_ROW, "device_id": None}, [], IDENTIFIED)),
    "no version and no model": (reading(version=None, model=None), valid(version=None, model=None)),
    "a zero character": (reading(model="a\0b"), valid(model="a\0b")),
    "an emoji": (reading(model="\N{GRINNING FACE}"), valid(model="\N{GRINNING FACE}")),
    # objects
    "extra fields": (reading(firmware_notes=[1, {"a": None}]), valid()),
    "a field with the parser's own name": (reading(_corrupt="x", _json="y", _errors="z"), valid()),
    "keys in the wrong case": (
        reading().replace(b"device_id", b"Device_ID"),
        ({**TYPED_ROW, "device_id": None}, [], IDENTIFIED),
    ),
    "a doubled key, of which the last counts": (
        reading()[:-1] + b', "heart_bpm": "fast", "heart_bpm": 71}',
        valid(heart_bpm=71),
    ),
    "bytes that are no UTF-8 in a text": (
        reading(model="??").replace(b"??", b"\xff\xfe"),
        (
            NULL_ROW,
            [("value", "'" + reading(model="\N{REPLACEMENT CHARACTER}" * 2).decode()[:80] + "' is no UTF-8")],
            BOTH_RULES,
        ),
    ),
}


def typed_rows(spark: SparkSession, payloads: list[bytes | None]) -> DataFrame:
    rows = [(None, value, None, "tracker-events", 0, offset, None, 0) for offset, value in enumerate(payloads)]
    schema = ", ".join(f"{field.split()[0]} {field.split()[1]}" for field in KAFKA_COLUMNS)
    return with_violations(apply_transform(spark.createDataFrame(rows, schema), TABLE), TABLE.expect)


KAFKA_COLUMNS = (
    "key BINARY",
    "value BINARY",
    "headers ARRAY<STRUCT<key:STRING,value:BINARY>>",
    "topic STRING",
    "partition INT",
    "offset BIGINT",
    "timestamp TIMESTAMP",
    "timestampType INT",
)


@pytest.fixture(scope="module")
def answers(spark: SparkSession) -> dict[str, tuple]:
    """The row of each case, computed in one Spark job."""
    rows = typed_rows(spark, [payload for payload, _ in CASES.values()]).collect()
    assert len(rows) == len(CASES)
    rows_by_offset = {row.offset: row for row in rows}
    return {name: rows_by_offset[offset] for offset, name in enumerate(CASES)}


def test_the_rows_of_these_tests_are_those_kafka_delivers(spark: SparkSession):
    from pyspark.sql.types import StructType

    names = [field.split()[0] for field in KAFKA_COLUMNS]
    assert StructType.fromDDL(KAFKA_SCHEMA).fieldNames() == names
    types = [field.split()[1].lower() for field in KAFKA_COLUMNS]
    assert [field.dataType.simpleString() for field in StructType.fromDDL(KAFKA_SCHEMA)] == types


@pytest.mark.parametrize("case", CASES)
def test_a_payload_becomes_one_row_that_says_what_could_not_be_typed(answers, case: str):
    fields, errors, rules = CASES[case][1]
    row = answers[case]
    assert {name: row[name] for name in FIELDS} == fields
    assert [(error.field, error.message) for error in row["_errors"]] == errors
    assert sorted(row["_rules"]) == rules
    assert (row.topic, row.partition) == ("tracker-events", 0)


def typed_row(spark: SparkSession, payload: bytes):
    [row] = typed_rows(spark, [payload]).collect()
    return row


def test_an_energy_with_an_absurd_exponent_is_a_bad_row_and_no_dead_stream(spark: SparkSession):
    assert typed_row(spark, reading(kcal="1e2147483647")).kcal is None


@pytest.mark.parametrize("rest", [TEXT, "and more", "}", f",{TEXT}", f"],[{TEXT}", f",null],[{TEXT}"])
def test_what_comes_after_the_first_document_is_not_passed_over_in_silence(spark: SparkSession, rest: str):
    assert typed_row(spark, f"{TEXT}{rest}".encode())["_errors"] != []


def test_single_quotes_are_no_json(spark: SparkSession):
    assert typed_row(spark, b"{'model': 'Stride'}")["_errors"] != []


def test_a_message_about_bytes_that_are_no_utf_8_is_utf_8_itself(spark: SparkSession):
    rows = typed_rows(spark, [b"\xff\xfe\x80", b'{"device_id":"\xc3'])
    assert rows.selectExpr("bool_and(is_valid_utf8(_errors[0].message)) AS fine").first().fine


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
def test_a_reading_of_a_tracker_with_a_wrong_clock_leaves_the_table_readable(
    spark: SparkSession, tmp_path: Path, time: str
):
    from deltalake import DeltaTable

    path = str(tmp_path / "table")
    typed_rows(spark, [reading(), reading(time=time)]).coalesce(1).write.format("delta").save(path)
    times = {row["time"] for row in DeltaTable(path).to_pyarrow_table().to_pylist()}
    assert times == {MOMENT.replace(tzinfo=UTC), datetime.fromisoformat(time)}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
READINGS = st.fixed_dictionaries({}, optional=dict.fromkeys([*FIELDS, "other"], JSON))
PAYLOADS = st.one_of(
    st.none(),
    st.binary(max_size=200),
    JSON.map(lambda value: json.dumps(value).encode()),
    READINGS.map(lambda value: json.dumps(value).encode()),
    st.tuples(READINGS, st.integers(0, 100)).map(lambda pair: json.dumps(pair[0]).encode()[: pair[1]]),
)


@given(st.lists(PAYLOADS, min_size=150, max_size=150))
@settings(
    max_examples=3,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
def test_whatever_arrives_no_row_is_lost_none_is_doubled_and_nothing_raises(spark: SparkSession, payloads):
    # Spark has years before 1, but Python has not.
    frame = typed_rows(spark, payloads).selectExpr(
        "offset", "time IS NULL AS timeless", "device_id", "_errors", "_rules"
    )
    rows = sorted(frame.collect(), key=lambda row: row.offset)
    assert [row.offset for row in rows] == list(range(len(payloads)))
    for row in rows:
        assert ("identified" in row["_rules"]) == (row.timeless or row.device_id is None)
        if payloads[row.offset] is None:
            assert [error.message for error in row["_errors"]] == ["no value: a tombstone"]
