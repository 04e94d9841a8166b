"""Events of Debezium become typed changes, in each form that connectors write."""

import base64
import json
import random
import string
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal, localcontext
from typing import Any

import pytest
from pyspark.sql import SparkSession

from include.engine import struct_type
from include.engine.rows import parse_debezium
from include.engine.rows.debezium_values import FORM_UNKNOWN
from include.engine.rows.parse_debezium import IS_NO_EVENT, NO_ROW, UNSENT
from include.spec import Debezium

ERRORS = "_errors ARRAY<STRUCT<field: STRING, message: STRING>>"
PLACEHOLDER = "__debezium_unavailable_value"
TIME, CONNECT, DATA = "io.debezium.time.", "org.apache.kafka.connect.data.", "io.debezium.data."
MOST = 10**38 - 1


def typed(spark: SparkSession, values: list, schema: str, is_partial: bool = False, **options: Any) -> list[dict]:
    """The typed columns of these values, text or bytes, in one Spark job. An error is a pair of field and message."""
    columns = struct_type.from_ddl(f"{schema}, {ERRORS}")
    into = tuple(name for name in columns.names if not name.startswith("_"))
    rows = [(value if value is None or isinstance(value, bytes) else str(value).encode(),) for value in values]
    frame = spark.createDataFrame(rows, "value BINARY").coalesce(1)
    parsed = parse_debezium.typed(frame, Debezium("value", into=into, **options), columns, is_partial)
    return [_plain(row) for row in parsed.drop("value").toArrow().to_pylist()]


def _plain(row: dict) -> dict:
    errors = [(error["field"], error["message"]) for error in row["_errors"]]
    times = {name: value.replace(tzinfo=None) for name, value in row.items() if isinstance(value, datetime)}
    return row | times | {"_errors": errors}


def event(row: dict | None, op: str = "u", /, **source: Any) -> str:
    source = {"lsn": 7, "ts_ms": 1_700_000_000_000} | source
    return json.dumps({"op": op, "before": None, "after": row, "source": source})


def described(types: dict[str, tuple], row: dict, op: str = "u") -> str:
    """An event with its schema. types: the name of the type by field, and its scale."""
    fields = [
        {"type": "any", "optional": True, "field": field, "name": name, "version": 1, "parameters": {"scale": scale}}
        for field, (name, scale) in types.items()
    ]
    images = [{"type": "struct", "fields": fields, "field": image} for image in ("before", "after")]
    schema = {"type": "struct", "fields": [*images, {"type": "string", "field": "op"}], "name": "x.Envelope"}
    return json.dumps({"schema": schema, "payload": json.loads(event(row, op))})


def test_an_event_becomes_a_typed_change_with_its_schema_and_without(spark):
    moment = datetime(2023, 11, 14, 22, 13, 20)
    plain = event({"id": 1, "amount": "1.5", "at": 1_700_000_000_000_000}, "c")
    delete = '{"op": "d", "before": {"id": 1, "amount": null}, "after": null, "source": {"lsn": 7}}'
    others = event({"id": 1, "at": "2026-01-02T03:04:05Z", "tags": [1, "b"]}, "r")
    values = [plain, f'{{"schema": {{}}, "payload": {delete}}}', delete, others, '{"op": "t", "source": {"lsn": 7}}']
    rows = typed(spark, [*values, None, event({"id": 1}, lsn=None)], "id INT, amount DECIMAL(10,2), at TIMESTAMP")
    names = ("id", "amount", "at", "_op", "_sequence", "_rescued_data", "_errors")
    assert [tuple(row[name] for name in names) for row in rows] == [
        (1, Decimal("1.50"), moment, "c", 7, None, []),
        (1, None, None, "d", 7, None, []),
        (1, None, None, "d", 7, None, []),
        (1, None, datetime(2026, 1, 2, 3, 4, 5), "r", 7, '{"tags":"[1,\\"b\\"]"}', []),
        (None, None, None, "t", 7, None, []),
        (None, None, None, "tombstone", None, None, []),
        (1, None, None, "u", None, None, [("value", "the change has no source.lsn")]),
    ]
    assert rows[0]["_database_time"] == moment


def test_what_is_no_change_event_has_an_error_and_is_null(spark):
    is_row = "it is a row, which Debezium(unwrapped=True) reads"
    values = {
        "x": f"it{IS_NO_EVENT}",
        event({"id": 1})[:-9]: f"it{IS_NO_EVENT}",
        b'{"op": "c", "after": {"id": "\xff"}, "source": {"lsn": 1}}': "it is no UTF-8",
        "": "it is empty",
        "  ": "it is empty",
        "null": f"it{IS_NO_EVENT}",
        "[1, 2]": f"it{IS_NO_EVENT}",
        event({"id": 1}) + " x": f"it{IS_NO_EVENT}",
        '{"id": 1}': "it has no op",
        '{"payload": {"id": 1}, "schema": {}}': "it has no op",
        '{"id": 1, "__op": "c"}': is_row,
        '{"payload": {"id": 1, "__deleted": "false"}, "schema": {}}': is_row,
        event({"id": 1}, "x"): "its op is 'x'",
        event({"id": 1}, "m"): "its op is 'm'",
        event({"id": 1}, "U"): "its op is 'U'",
        event({"id": 1}, ""): "its op is ''",
    }
    rows = typed(spark, list(values), "id INT, name STRING")
    assert [row["_errors"][0][1].partition(" is no change event: ")[2] for row in rows] == list(values.values())
    assert {row[name] for row in rows for name in row if name != "_errors"} == {None}


@pytest.mark.parametrize("type_", ["TIMESTAMP", "TIMESTAMP_NTZ"])
def test_the_schema_of_an_event_tells_the_unit_of_its_times_by_column(spark, type_):
    names = ("millis", "micros", "nanos", "zoned", "plain")
    types = dict(
        zip(names, ("Timestamp", "MicroTimestamp", "NanoTimestamp", "ZonedTimestamp", "IsoTimestamp"), strict=True)
    )
    moment = 1_700_000_000
    row = {"millis": moment * 10**3 + 1, "micros": moment * 10**6 + 1, "nanos": moment * 10**9 + 1_000}
    row |= {"zoned": "2023-11-14T22:13:20.000001Z", "plain": "2023-11-14T22:13:20.000001"}
    values = [
        described({name: (TIME + kind, None) for name, kind in types.items()}, row),
        described(
            {"millis": (f"{CONNECT}Timestamp", None), "micros": (f"{TIME}Date", None)}, {"millis": -1, "micros": 1}
        ),
        event({"millis": moment * 10**3, "micros": moment * 10**6, "nanos": -1_000}),
        event({"nanos": -1}),
    ]
    schema = ", ".join(f"{name} {type_}" for name in names)
    units = {"millis": "millis", "nanos": "nanos"}
    rows = typed(spark, values, schema, integer_times=units)
    expected = datetime(2023, 11, 14, 22, 13, 20, 1)
    assert [rows[0][name] for name in names] == [expected.replace(microsecond=1_000), *[expected] * 4]
    assert (rows[1]["millis"], rows[1]["micros"]) == (datetime(1969, 12, 31, 23, 59, 59, 999_000), datetime(1970, 1, 2))
    assert [rows[2][name] for name in names[:2]] == [expected.replace(microsecond=0)] * 2
    assert rows[2]["nanos"] == datetime(1969, 12, 31, 23, 59, 59, 999_999)
    assert [row["_errors"] for row in rows[:3]] == [[]] * 3
    # Between two microseconds.
    assert (rows[3]["nanos"], [field for field, _ in rows[3]["_errors"]]) == (None, ["nanos"])


@pytest.mark.parametrize("is_flat", [False, True])
@pytest.mark.parametrize("is_described", [False, True])
def test_digits_that_are_a_string_in_the_event_are_a_date_or_an_error_and_no_count_of_days(
    spark, is_flat, is_described
):
    def message(row: str, op: str = "u") -> str:
        image = "before" if op == "d" else "after"
        payload = f'{{"op": "{op}", "{image}": {row}, "source": {{"lsn": 7, "ts_ms": 1, "day": "20000"}}}}'
        if is_flat:
            payload = f'{{"__op": "{op}", "__lsn": 7, "__source_ts_ms": 1, {row[1:]}'
        return f'{{"schema": {{"fields": []}}, "payload": {payload}}}' if is_described else payload

    wrong = ["day", "at", "local"]
    expected = {
        '{"day": 20000, "at": 20000, "local": 20000}': (date(2024, 10, 4), []),
        '{"day": "20000", "at": "20000", "local":\n"20000"}': (None, wrong),
        r'{"day": "\u00320000", "at": "2000\u0030", "local": "\u002b2"}': (None, wrong),
        r'{"d\u0061y": "20000", "\u0061t": "-7", "loc\u0061l": " 7 "}': (None, wrong),
        '{"day": "20241004", "at": "20241004", "local": "2024-10-04"}': (date(2024, 10, 4), []),
        '{"day": "1", "day": 20000, "at": null, "local": null}': (date(2024, 10, 4), []),
        '{"day": 20000, "day": "1", "at": null, "local": null}': (None, ["day"]),
        # No number is known to be one where an object repeats a key, and a string is refused.
        '{"note": {"x": 1, "x": 2}, "day": "20000", "at": "2026-03-01", "local": "7"}': (None, ["day", "local"]),
        # What is within another value is none of these columns.
        r'{"note": {"day": "1"}, "text": "\"day\": \"1\"", "day": 20000}': (date(2024, 10, 4), []),
    }
    values = [message(row, op) for row in expected for op in ("u", "d")]
    schema = "day DATE, at TIMESTAMP, local TIMESTAMP_NTZ"
    options = {"unwrapped": True} if is_flat else {}
    rows = typed(spark, values, schema, **options)
    found = [(row["day"], [field for field, _ in row["_errors"]]) for row in rows]
    assert found == [item for item in expected.values() for _ in range(2)]
    micros, text = rows[0], rows[8]
    assert micros["at"] == micros["local"] == datetime(1970, 1, 1, 0, 0, 0, 20_000)
    assert text["at"] == text["local"] == datetime(2024, 10, 4)


def test_digits_are_a_string_also_in_a_column_whose_name_is_written_with_escapes(spark):
    schema = "`t/\u65e5` DATE, `\u00e4` DATE"
    names = (r"t\/\u65e5", r"t/\u65E5", "t/\u65e5")
    events = [event({}).replace("{}", f'{{"{name}": "7", "\u00e4": 7}}') for name in names]
    rows = typed(spark, events, schema)
    assert [(row["t/\u65e5"], row["\u00e4"]) for row in rows] == [(None, date(1970, 1, 8))] * 3


def test_an_event_whose_row_is_no_object_says_what_is_none(spark):
    values = [f'{{"op": "c", "{field}": {value}}}' for field in ("after", "source") for value in ('"x"', "[]", "7")]
    rows = typed(spark, values, "id INT")
    assert {row["_errors"][0][1].partition(" is no change event: ")[2] for row in rows} == {f"it{IS_NO_EVENT}"}


def test_an_instant_outside_the_years_1_to_9999_is_null_with_an_error(spark):
    first, last = -62_135_596_800_000_000, 253_402_300_799_999_999
    beyond = [first - 1, last + 1, 253_402_318_799_000_000, 2**63 - 1, -(2**63), 10**30]
    values = [event({"at": micros, "plain": micros}) for micros in (first, last, *beyond)]
    days = [event({"day": day}) for day in (-719_162, 2_932_896, -719_163, 2_932_897, 10**9)]
    rows = typed(spark, values, "at TIMESTAMP, plain TIMESTAMP_NTZ")
    ends = [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)]
    assert [row["at"] for row in rows] == [row["plain"] for row in rows] == [*ends, *[None] * len(beyond)]
    assert [[field for field, _ in row["_errors"]] for row in rows] == [[], [], *[["at", "plain"]] * len(beyond)]
    rows = typed(spark, [*days, event({"day": 1}, ts_ms=2**63 - 1)], "day DATE")
    expected = [date(1, 1, 1), date(9999, 12, 31), None, None, None, date(1970, 1, 2)]
    assert [row["day"] for row in rows] == expected
    fields = [[field for field, _ in row["_errors"]] for row in rows]
    assert fields == [[], [], ["day"], ["day"], ["day"], ["_database_time"]]


def test_a_date_takes_days_or_an_instant_at_midnight(spark):
    at_noon = described({"day": (f"{TIME}Timestamp", None)}, {"day": 43_200_000})
    values = [
        described({"day": (f"{TIME}Date", None)}, {"day": 20_000}),
        described({"day": (f"{CONNECT}Date", None)}, {"day": -1}),
        described({"day": (f"{TIME}Timestamp", None)}, {"day": 86_400_000}),
        described({"day": (f"{TIME}IsoDate", None)}, {"day": "2026-01-02"}),
        event({"day": 1}),
        at_noon,
    ]
    rows = typed(spark, values, "day DATE", integer_times="millis")
    days = [date(2024, 10, 4), date(1969, 12, 31), date(1970, 1, 2), date(2026, 1, 2), date(1970, 1, 2), None]
    assert [row["day"] for row in rows] == days
    assert rows[-1]["_errors"] == [("day", "'43200000' is no DATE")]
    [row] = typed(spark, [event({"day": 86_400_000})], "day DATE", integer_times={"day": "millis"})
    assert row["day"] == date(1970, 1, 2)


def test_an_integer_that_is_no_time_by_its_type_or_its_size_is_null_with_an_error(spark):
    kinds = ["Time", "MicroTime", "NanoTime", "Year", "MicroDuration", "Interval"]
    names = [*(TIME + kind for kind in kinds), f"{CONNECT}Time", f"{DATA}Bits"]
    integers = [43_200_000_000, 2026, 0, 20_261_231, "+20261231", " 2026 "]
    values = [
        described({"day": (name, None), "at": (name, None), "local": (name, None)}, {"day": n, "at": n, "local": n})
        for name in names
        for n in integers
    ]
    # Of days, and of nanoseconds, which eight digits would show as a date.
    eight = [event({"day": n, "at": n}) for n in (20_261_231, 99_991_231, 20_260_301)]
    nanos = described({"at": (f"{TIME}NanoTimestamp", None), "day": (f"{TIME}Date", None)}, {"at": 20_260_301})
    texts = event({"day": "2026-03-01Z", "at": "20260301T1200Z", "local": "2026-03-01"})
    rows = typed(spark, [*values, *eight, nanos, texts], "day DATE, at TIMESTAMP, local TIMESTAMP_NTZ")
    for row in rows[: len(values)]:
        assert [row[name] for name in ("day", "at", "local")] == [None] * 3
        assert [field for field, _ in row["_errors"]] == ["day", "at", "local"]
    assert [row["day"] for row in rows[len(values) :]] == [None, None, None, None, date(2026, 3, 1)]
    fields = [[field for field, _ in row["_errors"]] for row in rows[len(values) :]]
    assert fields == [["day"], ["day"], ["day"], ["at"], []]
    # Another type says no unit, so the declared one counts.
    [own] = typed(spark, [described({"at": ("com.example.Moment", None)}, {"at": 1_000})], "at TIMESTAMP")
    assert own["at"] == datetime(1970, 1, 1, 0, 0, 0, 1_000)


def test_bytes_of_a_decimal_that_look_like_a_number_are_refused_as_far_as_something_tells(spark):
    told = ["1e10", "+123", "0012", "12E5", "1e+3", "0000", "00000000", "12345e10"]
    numbers = {"12": 12, "1E+3": 1000, "1e3": 1000, "-123": -123, "12.5": Decimal("12.5"), "0.12": Decimal("0.12")}
    # Either way right: a text of `decimal.handling.mode=string`, or three bytes.
    numbers |= {"1234": 1234, "0": 0, "1.0E10": 10**10, "-1.5": Decimal("-1.5")}
    schema = {"n": (f"{CONNECT}Decimal", "0")}
    by_schema = [described(schema, {"n": text}) for text in ("1234", "+123", "0012")]
    values = [event({"n": text}) for text in (*told, *numbers)]
    rows = typed(spark, [*values, *by_schema, described({}, {"n": "0012"})], "n DECIMAL(38,3)")
    assert [row["n"] for row in rows[: len(told)]] == [None] * len(told)
    assert all([field for field, _ in row["_errors"]] == ["n"] for row in rows[: len(told)])
    assert [row["n"] for row in rows[len(told) : len(values)]] == list(numbers.values())
    decoded = [int.from_bytes(base64.b64decode(text), "big", signed=True) for text in ("1234", "+123", "0012")]
    assert [row["n"] for row in rows[len(values) :]] == [*decoded, 12]


def encoded(unscaled: int) -> str:
    return base64.b64encode(unscaled.to_bytes((unscaled.bit_length() + 8) // 8, "big", signed=True)).decode()


def test_decimals_that_are_sent_as_bytes_are_exact(spark):
    numbers = (0, 1, -1, 127, 128, -128, -129, 150, 2**32, -(2**32), 2**64 + 1, -(2**64) - 1, MOST, -MOST, 10**37)
    cases = [(number, scale) for number in numbers for scale in (0, 2, 18)] + [(12, -2), (MOST, 38)]
    too_long = [(10**38, 0), (-(10**38), 0), (2**127, 0), (-(2**127), 2), (10**60, 0)]
    values = [
        described(
            {"text": (f"{CONNECT}Decimal", str(scale)), "number": (f"{CONNECT}Decimal", str(scale))},
            {
                "text": encoded(unscaled),
                "varies": {"scale": scale, "value": encoded(unscaled)},
                "number": encoded(unscaled),
            },
        )
        for unscaled, scale in (*cases, *too_long)
    ]
    rows = typed(spark, values, "text STRING, varies DECIMAL(38,18), number DECIMAL(38,0)")
    with localcontext(prec=80):
        for (unscaled, scale), row in zip(cases, rows, strict=False):
            number = Decimal(unscaled).scaleb(-scale)
            assert Decimal(row["text"]) == number
            if scale == 0:
                assert row["number"] == number
            if scale in (2, 18) and abs(number) < 10**20:
                assert row["varies"] == number
    for row in rows[len(cases) :]:
        assert (row["number"], row["varies"]) == (None, None)
        assert [field for field, _ in row["_errors"]] == ["varies", "number"]


def test_a_decimal_in_bytes_whose_scale_is_unknown_is_null_with_an_error(spark):
    scales: list = [None, "39", "-39", "x", ""]
    values = [
        described({"number": (f"{CONNECT}Decimal", scale)}, {"number": encoded(150), "varies": varies})
        for scale in scales
        for varies in ({"scale": scale, "value": encoded(150)}, {"value": encoded(150)})
    ]
    rows = typed(spark, values, "number DECIMAL(38,2), varies DECIMAL(38,2)")
    assert {(row["number"], row["varies"]) for row in rows} == {(None, None)}
    assert {tuple(field for field, _ in row["_errors"]) for row in rows} == {("number", "varies")}


def test_other_logical_types_are_read_as_far_as_a_column_can_hold_them(spark):
    row = {
        "bits": "AQI=",
        "number": "AQI=",
        "shape": {"wkb": "AQI=", "srid": 4326},
        "json": '{"a": 1}',
        "uuid": "6f1c6f3e-0f2b-4f2e-9d5d-0b9b7b0c1a2b",
        "span": "P1Y2M3DT4H5M6.78S",
        "time": 43_200_000_000,
        "year": 2026,
    }
    types = {
        "bits": (f"{DATA}Bits", None),
        "number": (f"{DATA}Bits", None),
        "shape": (f"{DATA}geometry.Geometry", None),
        "json": (f"{DATA}Json", None),
        "uuid": (f"{DATA}Uuid", None),
        "span": (f"{TIME}Interval", None),
        "time": (f"{TIME}MicroTime", None),
        "year": (f"{TIME}Year", None),
    }
    schema = "bits BINARY, number BIGINT, shape BINARY, json STRING, uuid STRING, span STRING, time BIGINT, year INT"
    [change] = typed(spark, [described(types, row)], schema)
    binary = {"bits": b"\x01\x02", "number": 513, "shape": b"\x01\x02"}
    assert {name: change[name] for name in row} == row | binary
    assert change["_errors"] == []


@pytest.mark.parametrize("placeholder", [PLACEHOLDER, "not sent: ü"])
def test_a_value_that_was_not_sent_is_recognized_in_each_form(spark, placeholder):
    content = placeholder.encode()
    forms = [
        placeholder,
        base64.b64encode(content).decode(),
        base64.urlsafe_b64encode(content).decode(),
        content.hex(),
        [placeholder],
        [base64.b64encode(content).decode()],
        [byte - 256 if byte > 127 else byte for byte in content],
        {placeholder: placeholder},
        json.dumps({placeholder: placeholder}),
        json.dumps([placeholder]),
    ]
    sent = ["a", [placeholder, "a"], [1], {"a": placeholder}, f"{placeholder} "]
    values = [event({"id": 1, "data": form, "bytes": None}) for form in (*forms, *sent)]
    schema = "id INT, data STRING, bytes BINARY"
    full = typed(spark, values, schema, placeholder=placeholder)
    assert [row["_errors"] for row in full] == [[("data", UNSENT)]] * len(forms) + [[]] * len(sent)
    assert [row["data"] is None for row in full] == [True] * len(forms) + [False] * len(sent)
    partial = typed(spark, values, schema, is_partial=True, placeholder=placeholder)
    assert [(row["data"] is None, row["_errors"]) for row in partial[: len(forms)]] == [(True, [])] * len(forms)


def of_base64(text: str) -> bytes | None:
    """The bytes of a text that Python's own `base64` reads, and writes in the same way."""
    with suppress(ValueError):
        content = base64.b64decode(text, validate=True)
        return content if base64.b64encode(content).decode() == text else None
    return None


def of_hex(text: str) -> bytes | None:
    with suppress(ValueError):
        return bytes.fromhex(text) if not text.strip(string.hexdigits) else None
    return None


def test_bytes_are_exact_in_the_form_that_is_declared_or_null_with_an_entry(spark):
    pick = random.Random(7)
    contents = [pick.randbytes(size) for size in [*range(40), 57, 58, 1_000]] + [bytes(size) for size in range(7)]
    texts = [base64.b64encode(content).decode() for content in contents] + [content.hex() for content in contents]
    texts += (
        [text.rstrip("=") for text in texts[:9]] + [text[1:] for text in texts] + [f"{text}=" for text in texts[:9]]
    )
    texts += [
        "QR==",
        "QUJ=",
        "QQ==QQ==",
        "Q",
        "=",
        "====",
        "QU\nJD",
        " QUJD",
        "QUJD ",
        "QUJ\x00",
        "QÜJD",
        "ＱＵＪＤ",
        "٣٣",
    ]
    texts += ["abc", "0xab", "\\xab", "ab cd", "AbCd", "deadbeef", "DEADBEEF", "AAAA", "0000", "+/8=", "-_8=", "fbff"]
    events = [event({"data": text}) for text in texts]
    of_url_safe = {text: of_base64(text.translate(str.maketrans("-_", "+/"))) for text in texts}
    # Without a declaration, a text that may be hex is not taken for base64.
    of_either = {text: None if text and not text.strip("0123456789abcdef") else of_base64(text) for text in texts}
    forms = {"base64": of_base64, "hex": of_hex, "base64-url-safe": of_url_safe.get, None: of_either.get}
    for form, expected in forms.items():
        rows = typed(spark, events, "data BINARY", binary=form)
        for text, row in zip(texts, rows, strict=True):
            assert row["data"] == expected(text), (form, text)
            assert [field for field, _ in row["_errors"]] == ["data"] * (row["data"] is None), (form, text)
    assert rows[texts.index("deadbeef")]["_errors"][0][1] == f"'deadbeef' is no BINARY{FORM_UNKNOWN}"


def test_the_schema_of_an_event_says_that_bytes_are_in_base64_and_a_shape_always_is(spark):
    values = [
        described({}, {"data": "deadbeef"}).replace('"fields": []', '"fields": [{"type": "bytes", "field": "data"}]')
    ]
    values += [event({"data": {"wkb": "deadbeef", "srid": None}})]
    for form in ("base64-url-safe", "hex", None):
        rows = typed(spark, values, "data BINARY", binary=form)
        assert [row["data"] for row in rows] == [base64.b64decode("deadbeef")] * 2
        assert [row["_errors"] for row in rows] == [[], []]


@pytest.mark.parametrize(
    ("sequence", "kind", "places"),
    [
        (
            "lsn",
            "BIGINT",
            [
                {"lsn": 0},
                {"lsn": "0/16B3748"},
                {"lsn": "0/FFFFFFFF"},
                {"lsn": 2**32},
                {"lsn": "1/1"},
                {"lsn": 2**63 - 1},
            ],
        ),
        (
            "sequence",
            "STRING",
            [{"sequence": text} for text in ('[null,"9"]', '["9","10"]', '["10","9"]', '["10","10"]')],
        ),
        (
            ("file", "pos", "row"),
            "STRING",
            [
                {"file": file, "pos": pos, "row": row}
                for file, pos, row in (
                    ("mysql-bin.000999", 4, 0),
                    ("mysql-bin.000999", 4, 1),
                    ("mysql-bin.000999", 157, 0),
                    ("mysql-bin.999999", 1_073_741_824, 10),
                    ("mysql-bin.1000000", 4, 0),
                )
            ],
        ),
        (
            ("change_lsn", "event_serial_no"),
            "STRING",
            [
                {"change_lsn": lsn, "event_serial_no": number}
                for lsn, number in (
                    ("00000027:00000AC0:0002", 1),
                    ("00000027:00000ac0:0002", 2),
                    ("00000027:00000ac0:000a", 1),
                    ("00000027:00000ac0:0010", 1),
                    ("000000a0:00000001:0001", 1),
                )
            ],
        ),
        ("scn", "STRING", [{"scn": str(10**digits)} for digits in range(20)]),
    ],
    ids=["LSN of PostgreSQL", "sequence of PostgreSQL", "binlog", "SQL Server", "Oracle"],
)
def test_places_order_as_those_of_the_database(spark, sequence, kind, places):
    missing = dict.fromkeys(places[0])
    snapshots = [event({"id": 1}, "r", **missing, ts_ms=at) for at in (None, 1, 1_700_000_000_000)]
    values = [*snapshots, *(event({"id": 1}, **place) for place in places), event({"id": 1}, **missing)]
    rows = typed(spark, values, f"id INT, _sequence {kind}", sequence=sequence)
    *sequences, without = [row["_sequence"] for row in rows]
    assert len(set(sequences)) == len(sequences)
    assert sorted(sequences) == sequences
    assert without is None and rows[-1]["_errors"][0][1].startswith("the change has no source.")


def test_what_is_no_place_is_an_error(spark):
    values = [event({"id": 1}, lsn=lsn) for lsn in ("x", "1.5", "FFFFFFFF/FFFFFFFF", 2**63)]
    for row in typed(spark, values, "id INT"):
        assert row["_sequence"] is None
        assert row["_errors"][0][1].endswith("is no place among the changes, by source.lsn")
    [row] = typed(spark, [event({"id": 1}, scn=str(10**20))], "id INT, _sequence STRING", sequence="scn")
    assert row["_sequence"] is None and row["_errors"]


def test_a_row_that_debezium_has_unwrapped_becomes_a_typed_change(spark):
    described_row = {
        "schema": {"type": "struct", "fields": [{"field": "at", "type": "int64", "name": f"{TIME}Timestamp"}]},
        "payload": {"id": 1, "at": 1_700_000_000_000, "__op": "u", "__lsn": 9},
    }
    values = [
        '{"id": 1, "__op": "c", "__source_lsn": 5, "__source_ts_ms": 1700000000000, "__table": "t", "x": 1}',
        '{"id": 1, "__op": "d", "__deleted": "true", "__lsn": "0/6"}',
        '{"id": 1, "__deleted": "false", "__lsn": 6}',
        '{"id": 1, "__op": "r", "__lsn": null}',
        json.dumps(described_row),
        '{"id": 1, "payload": "x", "schema": "y", "__op": "c", "__lsn": 7}',
        None,
        '{"id": 1, "__lsn": 7}',
        event({"id": 1}),
        "[1]",
    ]
    [alone] = typed(spark, [None], "id INT", unwrapped=True)
    assert (alone["_op"], alone["_errors"]) == (None, [("value", NO_ROW)])
    rows = typed(spark, values, "id INT, at TIMESTAMP", unwrapped=True, tombstones=True)
    assert [(row["_op"], row["_sequence"], row["_rescued_data"]) for row in rows] == [
        ("c", 5, '{"__table":"t","x":"1"}'),
        ("d", 6, None),
        ("u", 6, None),
        ("r", -(10**15), None),
        ("u", 9, None),
        ("c", 7, '{"payload":"x","schema":"y"}'),
        ("tombstone", None, None),
        *[(None, None, None)] * 3,
    ]
    assert rows[0]["_database_time"] == rows[4]["at"] == datetime.fromtimestamp(1_700_000_000, UTC).replace(tzinfo=None)
    no_op = "it has no __op: add.fields has to name op"
    reasons = [message.partition(" is no change event: ")[2] for row in rows[-3:] for _, message in row["_errors"]]
    assert reasons == [no_op, no_op, "it is no JSON object"]
