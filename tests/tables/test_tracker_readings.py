"""silver.tracker_readings: whatever a tracker sends becomes one typed row that says what could not be typed."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from include import catalog
from include.engine.batch.quality import with_violations
from include.engine.batch.table_rows import apply_transform
from include.spec import KAFKA_SCHEMA

TABLE = catalog.load().tables["silver.tracker_readings"]
GOOD = {
    "device_id": "tracker-1",
    "time": "2026-03-01T12:00:01.500Z",
    "version": "1.0.4",
    "model": "Stride",
    "heart_bpm": 70,
    "kcal": 0.071,
}
MOMENT = datetime(2026, 3, 1, 12, 0, 1, 500_000)
FIELDS = ("device_id", "time", "version", "model", "heart_bpm", "kcal")
TYPED = {**GOOD, "time": MOMENT, "kcal": Decimal("0.071")}
NOTHING = dict.fromkeys(FIELDS)
BOTH = ["identified", "plausible heart rate"]


def with_(**fields) -> bytes:
    return json.dumps({**GOOD, **fields}).encode()


def no_object(shown: str) -> tuple:
    return NOTHING, [("value", f"'{shown[:80]}' is no JSON object")], BOTH


def no(field: str, shown: str, kind: str, rules: list[str]) -> tuple:
    return {**TYPED, field: None}, [(field, f"'{shown}' is no {kind}")], rules


def fine(**fields) -> tuple:
    return {**TYPED, **fields}, [], []


RATE, IDENTIFIED = ["plausible heart rate"], ["identified"]
INT, DECIMAL = "INT", "DECIMAL(9,3)"
TEXT = json.dumps(GOOD)

# payload -> (typed fields, _errors, broken rules)
CASES: dict[str, tuple[bytes | None, tuple]] = {
    "a good reading": (with_(), fine()),
    "a tombstone": (None, (NOTHING, [("value", "no value: a tombstone")], BOTH)),
    "an empty value": (b"", (NOTHING, [("value", "empty")], BOTH)),
    "blanks": (b"   ", (NOTHING, [("value", "empty")], BOTH)),
    "a line end": (b"\n", no_object("\n")),
    "a cut reading": (TEXT[:-5].encode(), no_object(TEXT)),
    "an array": (f"[{TEXT}]".encode(), no_object(f"[{TEXT}]")),
    "two readings in an array": (f"[{TEXT},{TEXT}]".encode(), no_object(f"[{TEXT}")),
    "an empty array": (b"[]", no_object("[]")),
    "a number": (b"5", no_object("5")),
    "a text": (b'"x"', no_object('"x"')),
    "a truth": (b"true", no_object("true")),
    "a null": (b"null", no_object("null")),
    "an empty object": (b"{}", (NOTHING, [], BOTH)),
    "a comment": (b"{/*x*/}", no_object("{/*x*/}")),
    "a number with a leading zero": (b'{"heart_bpm":070}', no_object('{"heart_bpm":070}')),
    "a byte order mark": (b"\xef\xbb\xbf" + with_(), no_object("\ufeff" + TEXT)),
    "a number of 5000 digits": (b'{"heart_bpm":' + b"9" * 5000 + b"}", no_object('{"heart_bpm":' + "9" * 5000)),
    "100,000 brackets": (b"[" * 100_000, no_object("[" * 80)),
    "3,000 objects in each other": (b'{"model":' * 3_000, no_object('{"model":' * 9)),
    "a megabyte of nonsense": (b"x" * 1_000_000, no_object("x" * 80)),
    "a megabyte of model": (with_(model="x" * 1_000_000), fine(model="x" * 1_000_000)),
    # time
    "a time of day, which must not become today": (with_(time="12:30"), no("time", "12:30", "TIMESTAMP", IDENTIFIED)),
    "a time of day with a T": (with_(time="T12:30"), no("time", "T12:30", "TIMESTAMP", IDENTIFIED)),
    "a word as time": (with_(time="yesterday"), no("time", "yesterday", "TIMESTAMP", IDENTIFIED)),
    "now as time": (with_(time="now"), no("time", "now", "TIMESTAMP", IDENTIFIED)),
    "seconds as time": (with_(time=1772366400), no("time", "1772366400", "TIMESTAMP", IDENTIFIED)),
    "a day that is none": (with_(time="2026-02-30"), no("time", "2026-02-30", "TIMESTAMP", IDENTIFIED)),
    "a year of five digits": (with_(time="12026-03-01"), no("time", "12026-03-01", "TIMESTAMP", IDENTIFIED)),
    "a year and nothing": (with_(time="2026-"), no("time", "2026-", "TIMESTAMP", IDENTIFIED)),
    "an object as time": (with_(time={"at": 1}), no("time", '{"at":1}', "TIMESTAMP", IDENTIFIED)),
    "a null as time": (with_(time=None), ({**TYPED, "time": None}, [], IDENTIFIED)),
    "another offset": (with_(time="2026-03-01T14:00:01.5+02:00"), fine()),
    "a zone by name": (with_(time="2026-03-01T13:00:01.5 Europe/Berlin"), fine()),
    "blanks around the time": (with_(time=" 2026-03-01 12:00:01.5 "), fine()),
    "a date alone": (with_(time="2026-03-01"), fine(time=datetime(2026, 3, 1))),
    "nanoseconds": (with_(time="2026-03-01T12:00:01.500000999Z"), fine()),
    # heart_bpm
    "a word as rate": (with_(heart_bpm="fast"), no("heart_bpm", "fast", INT, RATE)),
    "a rate in quotes": (with_(heart_bpm="70"), fine()),
    "an empty rate": (with_(heart_bpm=""), no("heart_bpm", "", INT, RATE)),
    "a rate with decimals": (with_(heart_bpm=70.5), no("heart_bpm", "70.5", INT, RATE)),
    "a rate beyond INT": (with_(heart_bpm=2**31), no("heart_bpm", "2147483648", INT, RATE)),
    "a rate beyond all": (with_(heart_bpm=10**70), no("heart_bpm", "1" + "0" * 70, INT, RATE)),
    "a truth as rate": (with_(heart_bpm=True), no("heart_bpm", "true", INT, RATE)),
    "an array as rate": (with_(heart_bpm=[70]), no("heart_bpm", "[70]", INT, RATE)),
    "an object as rate": (with_(heart_bpm={"bpm": 70}), no("heart_bpm", '{"bpm":70}', INT, RATE)),
    "NaN as rate": (with_(heart_bpm=float("nan")), no("heart_bpm", '"NaN"', INT, RATE)),
    "infinity as rate": (with_(heart_bpm=float("-inf")), no("heart_bpm", '"-Infinity"', INT, RATE)),
    "no rate": (with_(heart_bpm=None), ({**TYPED, "heart_bpm": None}, [], RATE)),
    "the lowest rate": (with_(heart_bpm=20), fine(heart_bpm=20)),
    "the highest rate": (with_(heart_bpm=250), fine(heart_bpm=250)),
    "a rate too low": (with_(heart_bpm=19), ({**TYPED, "heart_bpm": 19}, [], RATE)),
    "a rate too high": (with_(heart_bpm=251), ({**TYPED, "heart_bpm": 251}, [], RATE)),
    # kcal
    "words as energy": (with_(kcal="a lot"), no("kcal", "a lot", DECIMAL, [])),
    "a comma as point": (with_(kcal="1,5"), no("kcal", "1,5", DECIMAL, [])),
    "energy beyond its type": (with_(kcal=1_000_000), no("kcal", "1000000", DECIMAL, [])),
    "the most energy": (with_(kcal="999999.999"), fine(kcal=Decimal("999999.999"))),
    "NaN as energy": (with_(kcal=float("nan")), no("kcal", '"NaN"', DECIMAL, [])),
    "an array as energy": (with_(kcal=[]), no("kcal", "[]", DECIMAL, [])),
    "a whole number as energy": (with_(kcal=2), fine(kcal=Decimal("2.000"))),
    "an exponent": (with_(kcal="1e2"), fine(kcal=Decimal("100.000"))),
    # text fields
    "a number as device": (with_(device_id=5), fine(device_id="5")),
    "an object as device": (with_(device_id={"a": [1, 2]}), fine(device_id='{"a":[1,2]}')),
    "a truth as model": (with_(model=True), fine(model="true")),
    "an empty device": (with_(device_id=""), fine(device_id="")),
    "no device": (with_(device_id=None), ({**TYPED, "device_id": None}, [], IDENTIFIED)),
    "no version and no model": (with_(version=None, model=None), fine(version=None, model=None)),
    "a zero character": (with_(model="a\0b"), fine(model="a\0b")),
    "an emoji": (with_(model="\N{GRINNING FACE}"), fine(model="\N{GRINNING FACE}")),
    # objects
    "extra fields": (with_(firmware_notes=[1, {"a": None}]), fine()),
    "a field with the parser's own name": (with_(_corrupt="x", _json="y", _errors="z"), fine()),
    "keys in the wrong case": (
        with_().replace(b"device_id", b"Device_ID"),
        ({**TYPED, "device_id": None}, [], IDENTIFIED),
    ),
    "a doubled key, of which the last counts": (
        with_()[:-1] + b', "heart_bpm": "fast", "heart_bpm": 71}',
        fine(heart_bpm=71),
    ),
    "bytes that are no UTF-8 in a text": (
        with_(model="??").replace(b"??", b"\xff\xfe"),
        (
            NOTHING,
            [("value", "'" + with_(model="\N{REPLACEMENT CHARACTER}" * 2).decode()[:80] + "' is no UTF-8")],
            BOTH,
        ),
    ),
}


def typed(spark: SparkSession, payloads: list[bytes | None]) -> DataFrame:
    rows = [(None, value, None, "tracker-events", 0, place, None, 0) for place, value in enumerate(payloads)]
    schema = ", ".join(f"{field.split()[0]} {field.split()[1]}" for field in PLAIN_KAFKA)
    return with_violations(apply_transform(spark.createDataFrame(rows, schema), TABLE), TABLE.expect)


PLAIN_KAFKA = (
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
    """What becomes of each case, all in one Spark job."""
    rows = typed(spark, [payload for payload, _ in CASES.values()]).collect()
    assert len(rows) == len(CASES)
    by_place = {row.offset: row for row in rows}
    return {name: by_place[place] for place, name in enumerate(CASES)}


def test_the_rows_of_these_tests_are_those_kafka_delivers(spark: SparkSession):
    from pyspark.sql.types import StructType

    names = [field.split()[0] for field in PLAIN_KAFKA]
    assert StructType.fromDDL(KAFKA_SCHEMA).fieldNames() == names
    kinds = [field.split()[1].lower() for field in PLAIN_KAFKA]
    assert [field.dataType.simpleString() for field in StructType.fromDDL(KAFKA_SCHEMA)] == kinds


@pytest.mark.parametrize("case", CASES)
def test_a_payload_becomes_one_row_that_says_what_could_not_be_typed(answers, case: str):
    fields, errors, rules = CASES[case][1]
    row = answers[case]
    assert {name: row[name] for name in FIELDS} == fields
    assert [(error.field, error.message) for error in row["_errors"]] == errors
    assert sorted(row["_rules"]) == rules
    assert (row.topic, row.partition) == ("tracker-events", 0)


def one(spark: SparkSession, payload: bytes):
    [row] = typed(spark, [payload]).collect()
    return row


def test_an_energy_with_an_absurd_exponent_is_a_bad_row_and_no_dead_stream(spark: SparkSession):
    assert one(spark, with_(kcal="1e2147483647")).kcal is None


@pytest.mark.parametrize("rest", [TEXT, "and more", "}"])
def test_what_comes_after_the_first_document_is_not_passed_over_in_silence(spark: SparkSession, rest: str):
    assert one(spark, f"{TEXT}{rest}".encode())["_errors"] != []


def test_single_quotes_are_no_json(spark: SparkSession):
    assert one(spark, b"{'model': 'Stride'}")["_errors"] != []


def test_energy_with_more_digits_than_its_column_holds_is_rounded_as_sql_does(spark: SparkSession):
    row = one(spark, with_(kcal=0.0716))
    assert (row.kcal, row["_errors"]) == (Decimal("0.072"), [])


def test_a_message_about_bytes_that_are_no_utf_8_is_utf_8_itself(spark: SparkSession):
    rows = typed(spark, [b"\xff\xfe\x80", b'{"device_id":"\xc3'])
    assert rows.selectExpr("bool_and(is_valid_utf8(_errors[0].message)) AS fine").first().fine


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
def test_a_reading_of_a_tracker_with_a_wrong_clock_leaves_the_table_readable(
    spark: SparkSession, tmp_path: Path, time: str
):
    from deltalake import DeltaTable

    path = str(tmp_path / "table")
    typed(spark, [with_(), with_(time=time)]).coalesce(1).write.format("delta").save(path)
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
    st.tuples(READINGS, st.integers(0, 100)).map(lambda cut: json.dumps(cut[0]).encode()[: cut[1]]),
)


@given(st.lists(PAYLOADS, min_size=150, max_size=150))
@settings(
    max_examples=3,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
def test_whatever_arrives_no_row_is_lost_none_is_doubled_and_nothing_raises(spark: SparkSession, payloads):
    # Years before 1 are right for Spark, and none for Python.
    rows = typed(spark, payloads).selectExpr("offset", "time IS NULL AS timeless", "device_id", "_errors", "_rules")
    found = sorted(rows.collect(), key=lambda row: row.offset)
    assert [row.offset for row in found] == list(range(len(payloads)))
    for row in found:
        assert ("identified" in row["_rules"]) == (row.timeless or row.device_id is None)
        if payloads[row.offset] is None:
            assert [error.message for error in row["_errors"]] == ["no value: a tombstone"]
