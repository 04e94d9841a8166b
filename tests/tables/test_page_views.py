"""silver.page_views turns each message into one typed row, which names the fields that cannot be read."""

from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from include import catalog
from include.engine.rows import writer_schemas
from include.engine.rows.quality import with_violations
from include.engine.rows.transform import apply_transform
from include.examples import views
from include.examples.views import _long, _optional, _text
from include.spec import KAFKA_SCHEMA_WITH_IDS
from tests.support.expected import views as expected_views
from tests.support.expected.views import EMPTY_ROW, FIELDS
from tests.support.flows import only_in_full_runs

TABLE = catalog.load().tables["silver.page_views"]
TIME = 1_772_366_401_500
MOMENT = datetime(2026, 3, 1, 12, 0, 1, 500_000, UTC)
V1, V2 = b"\0\0\0\0\x01", b"\0\0\0\0\x02"
BODY = _text("v") + _long(TIME) + _text("d") + _optional("u")
ROW = {"view_id": "v", "time": MOMENT, "document_id": "d", "user_id": "u", "referrer": None}
HUGE = _long(2**30)


def hex_literal(value: bytes) -> str:
    return f"X'{value[:20].hex().upper()}'"


def invalid_avro(value: bytes, schema_id: int) -> tuple:
    return value, EMPTY_ROW, [("value", f"{hex_literal(value)} is no Avro of schema id {schema_id}")]


# case -> payload, typed fields, _errors
CASES: dict[str, tuple] = {
    "schema 1": (V1 + BODY, ROW, []),
    "schema 2": (V2 + BODY + _optional("r"), {**ROW, "referrer": "r"}, []),
    "nobody was logged in": (V1 + BODY[:-3] + _long(0), {**ROW, "user_id": None}, []),
    "an unknown schema": (b"\0\0\0\0\x07" + BODY, EMPTY_ROW, [("value", "schema id 7 is not declared")]),
    "a tombstone": (None, EMPTY_ROW, [("value", "no value: a tombstone")]),
    "an empty value": (b"", EMPTY_ROW, [("value", "empty")]),
    "no header": (BODY, EMPTY_ROW, [("value", f"{hex_literal(BODY)} has no schema registry header")]),
    "a header alone": invalid_avro(V1, 1),
    "half a header": (V1[:4], EMPTY_ROW, [("value", f"{hex_literal(V1[:4])} has no schema registry header")]),
    "a record that is cut off": invalid_avro(V1 + BODY[:-1], 1),
    "a record that goes on": invalid_avro(V1 + BODY + b"\0", 1),
    "the one of schema 2 called one of schema 1": invalid_avro(V1 + BODY + _optional("r"), 1),
    "the one of schema 1 called one of schema 2": invalid_avro(V2 + BODY, 2),
    "a text of a gigabyte, it says": invalid_avro(V1 + HUGE + BODY, 1),
    "a text of less than nothing": invalid_avro(V1 + _long(-1) + BODY, 1),
    "a union of three": invalid_avro(V1 + BODY[:-3] + _long(2) + _text("u"), 1),
    "a number without an end": invalid_avro(V1 + b"\xff" * 12, 1),
    "a time that no clock has": invalid_avro(V1 + _text("v") + _long(2**62) + _text("d") + _optional("u"), 1),
    "a time after the year 9999": (
        V1 + _text("v") + _long(10**15) + _text("d") + _optional("u"),
        {**ROW, "time": None},
        [("time", "'+33658-09-27 01:46:40' is no TIMESTAMP")],
    ),
    "a document that is no UTF-8": (
        V1 + _text("v") + _long(TIME) + _long(2) + b"\xc3\x28" + _optional("u"),
        {**ROW, "document_id": None},
        [("document_id", "'\ufffd(' is no STRING")],
    ),
}


def typed_rows(spark: SparkSession, payloads: list[bytes | None]) -> DataFrame:
    rows = [
        {"value": None if value is None else bytearray(value), "topic": "t", "partition": 0, "offset": offset}
        for offset, value in enumerate(payloads)
    ]
    frame = spark.createDataFrame(rows, KAFKA_SCHEMA_WITH_IDS)
    frame = frame.withColumn("schema_id", writer_schemas.schema_id(frame["value"]))
    return with_violations(apply_transform(frame, TABLE), TABLE.expect)


def collect_sorted(rows: DataFrame) -> list:
    """The rows sorted by offset, with times as text, because Python has no years before 1."""
    moment = "date_format(time, \"yyyy-MM-dd'T'HH:mm:ss.SSS\") AS moment"
    selection = rows.selectExpr(*[name for name in FIELDS if name != "time"], moment, "offset", "_errors", "_rules")
    return sorted(selection.collect(), key=lambda row: row.offset)


def assert_as_expected(row, fields: dict) -> None:
    time = fields["time"] and fields["time"].isoformat(timespec="milliseconds").removesuffix("+00:00")
    assert {name: row[name] for name in FIELDS if name != "time"} | {"time": row.moment} == {**fields, "time": time}
    is_identified = None not in (fields["view_id"], fields["time"], fields["document_id"])
    assert row["_rules"] == ([] if is_identified else ["identified"])


def test_each_payload_becomes_what_it_should(spark: SparkSession):
    rows = collect_sorted(typed_rows(spark, [case[0] for case in CASES.values()]))
    for (name, (value, fields, errors)), row in zip(CASES.items(), rows, strict=True):
        assert [(error.field, error.message) for error in row["_errors"]] == errors, name
        assert_as_expected(row, fields)
        assert expected_views.decode(value) == (fields, [field for field, _ in errors]), name


def test_one_from_avro_reads_a_row(spark: SparkSession):
    plan = typed_rows(spark, [V1 + BODY])._jdf.queryExecution().optimizedPlan().toString()
    assert plan.count("from_avro(") == 2


BYTES = st.binary(max_size=40)
TEXTS = st.text(max_size=8).map(_text) | BYTES.map(lambda data: _long(len(data)) + data)
OPTIONALS = st.just(_long(0)) | TEXTS.map(lambda text: _long(1) + text)
TIMES = st.integers(-(2**63), 2**63 - 1) | st.integers(TIME, TIME + 10**10)
BODIES = st.tuples(TEXTS, TIMES.map(_long), TEXTS, OPTIONALS, st.just(b"") | OPTIONALS).map(b"".join)
IDS = st.sampled_from([V1, V2]) | st.integers(0, 2**32 - 1).map(lambda number: b"\0" + number.to_bytes(4, "big"))
RECORDS = st.tuples(IDS, BODIES).map(b"".join)
PAYLOADS = st.one_of(
    st.none(),
    BYTES,
    RECORDS,
    st.tuples(IDS, BYTES).map(b"".join),
    st.tuples(RECORDS, st.integers(0, 60)).map(lambda pair: pair[0][: pair[1]]),
    st.tuples(RECORDS, BYTES).map(b"".join),
    st.tuples(RECORDS, st.integers(5, 60), BYTES).map(lambda parts: parts[0][: parts[1]] + parts[2]),
    st.tuples(IDS, st.integers(-(2**40), 2**40).map(_long), BYTES).map(b"".join),
)
RELAXED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]


def assert_nothing_is_lost(spark: SparkSession, payloads: list[bytes | None]) -> None:
    rows = collect_sorted(typed_rows(spark, payloads))
    assert [row.offset for row in rows] == list(range(len(payloads)))
    for payload, row in zip(payloads, rows, strict=True):
        fields, errors = expected_views.decode(payload)
        assert [error.field for error in row["_errors"]] == errors, payload
        assert_as_expected(row, fields)


@given(st.lists(PAYLOADS, min_size=150, max_size=150))
@settings(max_examples=3, deadline=None, suppress_health_check=RELAXED, phases=[Phase.generate])
def test_whatever_arrives_no_row_is_lost_none_is_doubled_and_nothing_raises(spark: SparkSession, payloads):
    assert_nothing_is_lost(spark, payloads)


@only_in_full_runs
@given(st.lists(PAYLOADS, min_size=300, max_size=300))
@settings(max_examples=60, deadline=None, suppress_health_check=RELAXED)
def test_so_it_is_with_very_many(spark: SparkSession, payloads):
    assert_nothing_is_lost(spark, payloads)


def test_generated_views_become_what_plain_python_makes_of_them(spark: SparkSession):
    generated_views = views.views(5, 2_000, datetime(2026, 3, 1, tzinfo=UTC), 5)
    assert_nothing_is_lost(spark, [view.value for view in generated_views])


@pytest.mark.parametrize("schema", ['"type": "strnig"', '"type": {"type": "array"}'])
def test_a_schema_that_avro_does_not_know_is_refused_by_the_check(spark: SparkSession, schema: str):
    from dataclasses import replace

    from include.engine.check import check
    from include.errors import DeclarationError

    text = f'{{"type": "record", "name": "V", "fields": [{{"name": "view_id", {schema}}}]}}'
    table = replace(TABLE, parse=replace(TABLE.parse, schemas={1: text}, into=("view_id",)))
    with pytest.raises(DeclarationError, match="silver/page_views.py: its parse cannot be analysed"):
        check._check_flow(spark, table.single_flow, catalog.load())
