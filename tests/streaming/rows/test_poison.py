"""Rows of a source that make a batch fail: they go to the quarantine with their reason, and the flow goes on."""

import json
from datetime import datetime

import pytest

from include.errors import FlowBroken
from include.ledger import verify
from include.rules import FAILED
from include.settings import settings
from include.spec import Append, Bucket, Delta, Table, Upsert, Watermark
from tests.support.flows import rows_of

SOURCE = "topic STRING, partition INT, offset BIGINT, kind STRING, text STRING, amount BIGINT"
APPEND = Append()
# What a transform makes of a row, by kind; each raises for the row that it names.
TRANSFORM = """
    SELECT offset, amount, timestamp_seconds(offset) AS time, CASE kind
        WHEN 'division' THEN CAST(10 / amount AS BIGINT)
        WHEN 'cast' THEN CAST(text AS BIGINT)
        WHEN 'index' THEN element_at(array(1, 2), CAST(amount AS INT))
        WHEN 'overflow' THEN 9223372036854775807 + amount
        WHEN 'raised' THEN coalesce(raise_error(text), 0)
        WHEN 'map' THEN element_at(map(text, amount, 'a', 2), 'b')
        WHEN 'pattern' THEN regexp_count('aaa', text)
        WHEN 'date' THEN unix_date(make_date(CAST(amount AS INT), 2, 30))
        WHEN 'variant' THEN variant_get(parse_json(text), '$.a', 'bigint')
        WHEN 'decimal' THEN CAST(CAST(text AS DECIMAL(38, 0)) * 10 AS BIGINT)
        ELSE amount END AS value
    FROM source
"""
POISON = {
    "division": (None, 0),
    "cast": ("12a", 1),
    "index": (None, 9),
    "overflow": (None, 1),
    "raised": ("no such thing", 1),
    "map": ("a", 1),
    "pattern": ("[", 1),
    "date": (None, 2024),
    "variant": ('{"a": "x"}', 1),
    "decimal": ("9" * 39, 1),
}
REASONS = {
    "division": "[DIVIDE_BY_ZERO",
    "cast": "[CAST_INVALID_INPUT",
    "index": "[INVALID_ARRAY_INDEX_IN_ELEMENT_AT",
    "overflow": "[ARITHMETIC_OVERFLOW",
    "raised": "[USER_RAISED_EXCEPTION] no such thing",
    "map": "[DUPLICATED_MAP_KEY",
    "pattern": "[INVALID_PARAMETER_VALUE.PATTERN",
    "date": "[DATETIME_FIELD_OUT_OF_BOUNDS",
    "variant": "[INVALID_VARIANT_CAST",
    "decimal": "[NUMERIC_OUT_OF_SUPPORTED_RANGE",
}


def arrive(spark, name: str, rows: list[tuple]) -> None:
    frame = spark.createDataFrame(rows, SOURCE).coalesce(1)
    frame.write.format("delta").mode("append").save(str(settings().table_path(f"bronze.{name}")))


def good(*offsets: int) -> list[tuple]:
    return [("events", 0, offset, "good", None, offset) for offset in offsets]


def poisonous(first_offset: int, kinds: tuple[str, ...]) -> list[tuple]:
    return [("events", 1, first_offset + place, kind, *POISON[kind]) for place, kind in enumerate(kinds)]


def table(name: str, write=APPEND, **options) -> Table:
    defaults = {
        "source": Delta(f"bronze.{name}"),
        "schema": "offset BIGINT, amount BIGINT, time TIMESTAMP, value BIGINT",
        "transform": TRANSFORM,
    }
    return Table(name=f"silver.{name}", comment="", write=write, **{**defaults, **options})


def failed_rows(of: Table) -> dict[str, dict]:
    """The quarantined rows that could not be processed, by kind."""
    rows = [row for row in rows_of(of.quarantine) if row["_rules"] == [FAILED]]
    return {json.loads(row["_failed_record"])["kind"]: row for row in rows}


@pytest.mark.parametrize(
    ("write", "kinds"),
    [
        (Append(), tuple(POISON)),
        (Append(unique=("offset", "time"), watermark=Watermark("time", minutes=60)), ("cast",)),
        (Upsert(("offset",), sequence_by="time"), ("map", "division")),
        (Upsert(("offset",), sequence_by="time", scd=2), ("raised",)),
    ],
    ids=["append", "unique", "merge", "history"],
)
def test_each_poisonous_row_is_quarantined_with_its_reason_and_the_flow_goes_on(spark, run_once, name, write, kinds):
    of = table(name, write, source=Delta(f"bronze.{name}", max_files=1))
    arrive(spark, name, [*good(*range(10)), *poisonous(100, kinds)])
    arrive(spark, name, good(10, 11))
    run_once(of)
    assert sorted(row["offset"] for row in rows_of(of.name)) == list(range(12))
    failed = failed_rows(of)
    expected = {kind: REASONS[kind] for kind in kinds}
    assert {kind: row["_failed_reason"][: len(REASONS[kind])] for kind, row in failed.items()} == expected
    places = [(json.loads(row["_failed_record"])["topic"], row["offset"]) for row in failed.values()]
    assert sorted(places) == [("events", 100 + place) for place in range(len(kinds))]
    assert "every row accounted for" in verify.lines(verify.verify(of))[0]


def test_a_transform_that_fails_for_every_row_is_broken_and_one_that_has_made_rows_is_not(spark, run_once, name):
    arrive(spark, name, good(1))
    of = table(name)
    run_once(of)
    arrive(spark, name, poisonous(10, ("division",)))
    run_once(of)
    assert [row["offset"] for row in rows_of(of.quarantine)] == [10]
    changed = table(name, transform=TRANSFORM.replace("ELSE amount", "ELSE 1 / (amount - amount)"))
    arrive(spark, name, good(*range(20, 60)))
    for _ in range(2):  # A restart does not make the definition one that has made rows.
        with pytest.raises(FlowBroken) as error:
            run_once(changed)
        assert str(error.value).startswith(f"{of.name}: every row of batch 2 that was tried fails, the first at topic")
        assert "([DIVIDE_BY_ZERO] Division by zero." in str(error.value)
        assert f"which reads bronze.{name} from version 2 to the end of version 2 (action skip)" in str(error.value)
        assert error.value.error == "DIVIDE_BY_ZERO"


@pytest.mark.parametrize("write", [Append(), Upsert(("id",), sequence_by="id")], ids=["append", "merge"])
def test_what_readers_cannot_represent_is_quarantined_by_the_rules_that_columns_imply(spark, run_once, name, write):
    transform = """
        SELECT offset AS id, timestamp_micros(CASE WHEN offset = 1 THEN 253402318799000000 ELSE 0 END) AS time,
            date_from_unix_date(CASE WHEN offset = 2 THEN -800000 ELSE 0 END) AS day,
            array(named_struct('at', timestamp_millis(CASE WHEN offset = 3 THEN -70000000000000 ELSE 0 END))) AS more,
            CASE WHEN offset <> 4 THEN 'a' END AS required,
            CASE WHEN offset = 5 THEN CAST(X'FFFE00' AS STRING) WHEN offset = 6 THEN CAST(X'00FF' AS STRING) END AS text
        FROM source
    """
    schema = (
        "id BIGINT, time TIMESTAMP, day DATE, more ARRAY<STRUCT<at: TIMESTAMP>>, required STRING NOT NULL, text STRING"
    )
    of = table(name, write, schema=schema, transform=transform)
    arrive(spark, name, good(*range(8)))
    run_once(of)
    stored = spark.read.format("delta").load(str(settings().table_path(of.name))).selectExpr("id", "hex(text) AS text")
    assert {row["id"]: row["text"] for row in stored.collect()} == {0: None, 5: "FFFE00", 6: "00FF", 7: None}
    quarantined = spark.read.format("delta").load(str(settings().table_path(of.quarantine)))
    assert {row["id"]: row["_rules"] for row in quarantined.select("id", "_rules").collect()} == {
        1: ["times within the years 1 to 9999"],
        2: ["times within the years 1 to 9999"],
        3: ["times within the years 1 to 9999"],
        4: ["values in columns that are NOT NULL"],
    }
    assert "every row accounted for" in verify.lines(verify.verify(of))[0]


def test_a_row_that_breaks_a_check_constraint_is_quarantined_by_its_name(spark, run_once, name):
    of = table(name)
    arrive(spark, name, good(1))
    run_once(of)
    path = settings().table_path(of.name)
    spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT small CHECK (amount < 100)")
    arrive(spark, name, good(2, 500))
    run_once(of)
    assert sorted(row["offset"] for row in rows_of(of.name)) == [1, 2]
    assert [(row["offset"], row["_rules"]) for row in rows_of(of.quarantine)] == [(500, ["constraint small"])]


def sums(rows):
    from pyspark.sql import functions as F

    rows = rows.withColumn("value", F.expr("IF(kind = 'cast', CAST(text AS BIGINT), amount)"))
    return rows.groupBy("hour").agg(F.sum("value").alias("total"))


def test_an_aggregate_leaves_out_a_source_row_that_fails_and_names_a_bucket_that_fails_as_a_whole(
    spark, run_once, name
):
    schema = f"{SOURCE}, time TIMESTAMP"

    def add(*rows: tuple[int, str, str | None, int]) -> None:
        frame = spark.createDataFrame(
            [("events", 0, hour, kind, text, amount, datetime(2026, 3, 1, hour)) for hour, kind, text, amount in rows],
            schema,
        )
        path = str(settings().table_path(f"bronze.{name}"))
        frame.coalesce(1).write.format("delta").mode("append").save(path)

    by_hour = Upsert(keys=("hour",), recompute=Bucket("hour", of="time", unit="hour"))
    of = table(name, by_hour, schema="hour TIMESTAMP, total BIGINT", transform=sums)
    most = 2**63 - 1
    add((1, "good", None, 5), (1, "cast", "x", 1), (2, "good", None, 7), (3, "good", None, most), (3, "good", None, 1))
    run_once(of)
    add((1, "good", None, 6), (2, "good", None, 1))
    run_once(of)
    assert {row["hour"].hour: row["total"] for row in rows_of(of.name)} == {1: 11, 2: 8}
    failed = [(row["_failed_reason"], json.loads(row["_failed_record"])) for row in rows_of(of.quarantine)]
    (of_row,) = [(reason, record) for reason, record in failed if "kind" in record]
    assert of_row[0].startswith("[CAST_INVALID_INPUT") and of_row[1]["text"] == "x"
    (of_bucket,) = [(reason, record) for reason, record in failed if "bucket" in record]
    assert "overflow" in of_bucket[0].lower() and of_bucket[1] == {"bucket": "2026-03-01T03:00:00+00:00"}
    verify.verify(of)
