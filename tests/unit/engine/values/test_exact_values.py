"""A value is exact, or NULL with an entry in `_errors`, by each way in."""

import json
import random
import re
from types import SimpleNamespace

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.engine import struct_type
from include.engine.batch import batch_of_files
from include.engine.files import file_headers
from include.engine.rows import parse, parse_debezium
from include.engine.rows.debezium_values import NO_NUMBER
from include.engine.tables import create_table
from include.engine.values import json_document
from include.engine.values.cast import cast
from include.spec import Cast, Debezium, Json
from tests.support import odd_documents
from tests.support.flows import FULL
from tests.support.landing import Landing
from tests.support.odd_documents import FIELDS, SCHEMA, OddDocuments, Pairs

COUNT = 40_000 if FULL else 1_500
TEXT_SCHEMA = ", ".join(f"{name} STRING" for name in FIELDS)
TIMES = ("moment", "local", "day")
NUMBERS = ("whole", "exact", "near")
HOOKS = dict.fromkeys(("parse_int", "parse_float", "parse_constant"), odd_documents.Number)
HOOKS["object_pairs_hook"] = Pairs


@pytest.fixture(scope="module")
def documents() -> OddDocuments:
    seed = random.SystemRandom().randrange(2**32)
    print(f"the seed of these documents is {seed}")
    return OddDocuments(random.Random(seed))


@pytest.fixture(scope="module")
def texts(documents) -> list[str]:
    return [documents.document() for _ in range(COUNT)]


def collected(rows: DataFrame, number: str) -> list:
    """The rows in order, with times as texts, because Python shifts them otherwise."""
    columns = [F.col(name).cast("string") if name in TIMES else F.col(name) for name in FIELDS]
    return rows.select(number, *columns, "_errors").orderBy(number).collect()


def check(row, fields: dict | None, times: dict, text: str, has_integer_times: bool = False) -> None:
    """Compares a row with the fields of its document, which is None for one that has to be refused."""
    wrong = {error.field for error in row["_errors"]}
    if fields is None:
        assert wrong and [row[name] for name in FIELDS] == [None] * len(FIELDS), text
        return
    for name in FIELDS:
        value, actual = fields.get(name), row[name]
        if isinstance(value, list | Pairs):
            assert actual is None if name != "other" else json.loads(actual, **HOOKS) == value, (name, text)
            continue
        value = odd_documents.as_text(value)
        if has_integer_times and name in TIMES and str(value).isdigit():
            continue
        # Debezium writes no number so, but bytes of one.
        is_bytes = has_integer_times and name in NUMBERS and re.match(NO_NUMBER, str(value))
        expected = None if is_bytes else odd_documents.typed(name, value, times)
        if name in ("moment", "local") and expected is not None:
            expected = str(expected).removesuffix("000").rstrip("0") if "." in str(expected) else str(expected)
        expected = str(expected) if name == "day" and expected is not None else expected
        assert repr(actual) == repr(expected) or actual == expected, (name, value, text)
        assert (name in wrong) == (value is not None and expected is None), (name, value, text)


def cell(text: str | None) -> str:
    """A cell without quotes is NULL if it is empty."""
    return "" if text is None else '"' + text.replace('"', '""') + '"'


def test_json_of_kafka(spark: SparkSession, documents, texts):
    rows = spark.createDataFrame([(number, text.encode()) for number, text in enumerate(texts)], "n INT, value BINARY")
    typed = parse.typed(rows, SimpleNamespace(), Json("value", into=FIELDS), struct_type.from_ddl(SCHEMA))
    for row, text in zip(collected(typed, "n"), texts, strict=True):
        check(row, odd_documents.read(text), documents.times, text)


def test_events_of_debezium(spark: SparkSession, documents, texts):
    events = [
        ("\ufeff" if text.startswith("\ufeff") else "")
        + f'{{"op": "c", "after": {text.removeprefix(chr(0xFEFF))}, "source": {{"lsn": {number}}}}}'
        for number, text in enumerate(texts)
    ]
    rows = spark.createDataFrame([(number, text.encode()) for number, text in enumerate(events)], "n INT, value BINARY")
    typed = parse_debezium.typed(rows, Debezium("value", into=FIELDS), struct_type.from_ddl(SCHEMA), False)
    for row, text, event in zip(collected(typed, "n"), texts, events, strict=True):
        # The event may be one where its row alone is none.
        is_event = list(odd_documents.read(event) or ()) == ["op", "after", "source"]
        check(row, odd_documents.read(text) if is_event else None, documents.times, event, has_integer_times=True)


def test_lines_of_json_files(spark: SparkSession, documents, texts):
    landing = Landing("odd_documents")
    table = landing.table("json", schema=TEXT_SCHEMA, new_columns="rescue")
    create_table.create(spark, table)
    path = landing.drop("a.json", "\n".join(texts))
    records = batch_of_files.read(spark, table, list(file_headers.read_headers(table, [str(path)])))
    typed = parse.typed(records, SimpleNamespace(), Cast(into=FIELDS), struct_type.from_ddl(SCHEMA))
    rescued = dict(records.select("_index", "_rescued_data").collect())
    for row, text in zip(collected(typed, "_index"), texts, strict=True):
        fields = odd_documents.read(text)
        if fields is None:
            assert json.loads(rescued[row["_index"]])["_record"].strip() == text.removeprefix("\ufeff").strip()
            assert [row[name] for name in FIELDS] == [None] * len(FIELDS), text
        else:
            check(row, fields, documents.times, text)


def test_cells_of_csv_files(spark: SparkSession, documents, texts):
    landing = Landing("odd_cells")
    table = landing.table(schema=TEXT_SCHEMA, new_columns="rescue")
    create_table.create(spark, table)
    rows = []
    for text in texts:
        fields = odd_documents.read(text) or {}
        rows.append({name: odd_documents.as_text(fields.get(name)) for name in FIELDS})
        rows[-1] |= {name: None for name, value in rows[-1].items() if isinstance(value, list | Pairs)}
    lines = [",".join(FIELDS), *(",".join(map(cell, row.values())) for row in rows)]
    path = landing.drop("a.csv", "\n".join(lines))
    records = batch_of_files.read(spark, table, list(file_headers.read_headers(table, [str(path)])))
    typed = parse.typed(records, SimpleNamespace(), Cast(into=FIELDS), struct_type.from_ddl(SCHEMA))
    for row, fields in zip(collected(typed, "_index"), rows, strict=True):
        check(row, fields, documents.times, str(fields))


NOTHING: dict[str, str] = {}
# By text, the value as text of each type that can hold it.
FORMS: dict[str, dict[str, str]] = {
    **dict.fromkeys(("1_000", "0x10", "5L", "5d", "٣", "３", "1٣", "--5", "1,000", "1 000", "", " "), NOTHING),
    **dict.fromkeys(("5\x00", "\x005", "\x01 5", "\x1f5", "5\x7f", "\xa05", "\u30005", "\ufeff5", "5\u2028"), NOTHING),
    "+5": {"bigint": "5", "decimal(10,2)": "5.00", "double": "5.0"},
    ".5": {"decimal(10,2)": "0.50", "double": "0.5"},
    "5.": {"bigint": "5", "decimal(10,2)": "5.00", "double": "5.0"},
    "\t5\n": {"bigint": "5", "decimal(10,2)": "5.00", "double": "5.0"},
    "-0": {"bigint": "0", "decimal(10,2)": "0.00", "double": "-0.0"},
    "1e400": NOTHING,
    "15e-1": {"decimal(10,2)": "1.50", "double": "1.5"},
    "-Infinity": {"double": "-Infinity"},
    "TRUE": {"boolean": "true"},
    " yes ": {"boolean": "true"},
    **dict.fromkeys(("\x00true", "true\x1f", "tru", "on"), NOTHING),
    **dict.fromkeys(("2024-02-30", "2024-13-01", "2024-W01-1", "2024-001", "2024-01", "٢٠٢٤-01-01"), NOTHING),
    **dict.fromkeys(("2024-01-01T24:00:00", "2016-12-31T23:59:60Z", "2024-01-01\x00", "2024-01-01T12:00\x00"), NOTHING),
    **dict.fromkeys(("2024-01-01T12:00:00Z\x00", "2024-01-01T12:00:00+18:01", "2024-01-01T12:00:00 Z x"), NOTHING),
    # A fraction of an hour or of a minute is none of a second.
    **dict.fromkeys(("2024-01-01T12.5", "2024-01-01T12,5Z", "2024-01-01T12:00,5", "2024-01-01T12:00.25Z"), NOTHING),
    # Names that stand for several zones.
    **dict.fromkeys(("2024-07-01 12:00:00 BST", "2024-07-01 12:00:00 IST", "2024-07-01 12:00:00 CST"), NOTHING),
    "2024-07-01t12:00:00z": dict.fromkeys(("timestamp", "timestamp_ntz"), "2024-07-01 12:00:00"),
    "2024-07-01T12:00:00,5": dict.fromkeys(("timestamp", "timestamp_ntz"), "2024-07-01 12:00:00.5"),
    "2024-07-01T12:00:00-18:00": {"timestamp": "2024-07-02 06:00:00"},
    "2024-07-01 12:00:00 Europe/Berlin": {"timestamp": "2024-07-01 10:00:00"},
    "2024-07-01 12:00:00 GMT+1": {"timestamp": "2024-07-01 11:00:00"},
}


def test_no_part_of_a_text_is_passed_over_and_none_means_two_things(spark: SparkSession):
    types = ("bigint", "decimal(10,2)", "double", "boolean", "timestamp", "timestamp_ntz", "date")
    rows = spark.createDataFrame([(text,) for text in FORMS], "raw STRING").coalesce(1)
    values = [cast(F.col("raw"), type_name).cast("string").alias(type_name) for type_name in types]
    found = {row["raw"]: row.asDict() for row in rows.select("raw", *values).collect()}
    expected = {text: {"raw": text, **dict.fromkeys(types), **values} for text, values in FORMS.items()}
    assert found == expected


def test_a_document_that_is_broken_within_a_field_is_no_object(spark: SparkSession):
    # Spark's reader finds the next field of each, and makes NULL of the one before.
    broken = [
        r'{"a": "x\u1", "b": 1.50}',
        r'{"b": 2, "a": "x\u"}',
        '{"a": "x\n, "b": 2}',
        '{"a": "x\x01, "b": 2}',
        '{"a": [1, {"z": 2} 1], "b": 2}',
        '{"a": [1, {"z": 2} [], "b": 2}',
        '{"a": [":" 1, {"z": 2}], "b": 2}',
    ]
    rows = spark.createDataFrame([(text,) for text in [*broken, '{"b": 2}']], "text STRING").coalesce(1)
    documents = json_document.read(rows, F.col("text"), "document", struct_type.from_ddl("a STRING, b STRING"))
    whole = [row["text"] for row in documents.filter("document IS NOT NULL").collect()]
    assert whole == ['{"b": 2}']


def test_nothing_within_a_document_passes_for_its_end(spark: SparkSession):
    inserted = [
        '{"a": 1}], "marked": [{"a": 2}', '{"a": 1}], "marked": [{"{}": "1"}, {"a": 2}', '{"a": 1}]}', '{"a": 1}]} x',
        '{"a": 1}, {"{}": "1"}]} [{', '{"a": 1}], "broken": "x', '{"a": 1}, {"a": 2}', '{"a": 1}], "x": [{}', "", ",",
    ]  # fmt: skip
    rows = spark.createDataFrame([(text,) for text in inserted], "text STRING").coalesce(1)
    documents = json_document.read(rows, F.col("text"), "document", struct_type.from_ddl("a STRING"))
    assert documents.filter("document IS NOT NULL").collect() == []


def test_only_documents_that_spark_reads_exactly_are_read_as_they_are(documents):
    unchanged = re.compile(json_document.UNCHANGED)
    taken = set()
    for _ in range(20_000):
        number = documents.number(is_short=documents.random.random() < 0.7)
        if unchanged.match(f'{{"a":[{number}]}}'):
            is_integer = re.fullmatch("-?[1-9][0-9]*|0", number)
            # Within these bounds, Java writes a double as Python does.
            is_short = repr(float(number)) == number and (0.001 <= abs(float(number)) < 1e7 or float(number) == 0)
            assert is_integer or is_short, number
            taken.add(bool(is_integer))
    assert taken == {True, False}


@pytest.mark.parametrize(
    ("text", "is_taken"),
    [
        ('{"a": 12.5, "b" : [true, null, -7, 0, {"c": "\\u00e9\\n\\\\ud83d \\ud83d\\ude00 1.50, 1e5"}]}\n', True),
        ('\ufeff{"a": 0.001, "b": -0.0, "c": 9999999.5, "d": 123456789012345678901234567890}', True),
        *(
            (f'{{"a": {number}}}', False)
            for number in ("-0", "1.50", "0.0001", "12345678.5", "1e5", "NaN", "-Infinity")
        ),
        ('{"a": 0.1234567890123456}', False),
        ('{"a": "\\ud83d"}', False),
        ('{"a": "\\ude00\\ud83d"}', False),
        ('{"a": "\\ufdd0"}', False),
        ('{"a": "\ufdd0"}', False),
        ('{"a": 1} x', False),
    ],
)
def test_a_document_is_read_as_it_is_unless_it_holds_what_spark_changes(text: str, is_taken: bool):
    assert bool(re.match(json_document.UNCHANGED, text)) == is_taken
