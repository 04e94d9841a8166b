"""Rows of a source that make a batch fail: they go to the quarantine with their reason, and the flow goes on."""

import json
from dataclasses import replace
from datetime import datetime

import pytest

from include.control import commands
from include.control.commands import Action, Command
from include.control.store import database
from include.engine.batch import bisection
from include.engine.rows import storable
from include.errors import FlowBroken
from include.lake import locations
from include.ledger import verify
from include.project.sources import inline_steps
from include.recovery import reset
from include.rules import FAILED
from include.settings import settings
from include.spec import Append, Bucket, Delta, Flow, Lookup, Table, Upsert, Watermark
from tests.support.flows import only_in_full_runs, rows_of
from tests.support.landing import Landing

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
    frame.write.format("delta").mode("append").save(str(locations.table_path(f"bronze.{name}")))


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
    return Flow(name=f"silver.{name}", comment="", write=write, **{**defaults, **options})


def failed_rows(of: Table) -> dict[str, dict]:
    """The quarantined rows that could not be processed, by kind."""
    rows = [row for row in rows_of(of.quarantine) if row["_rules"] == [FAILED]]
    return {json.loads(row["_failed_record"])["kind"]: row for row in rows}


@pytest.mark.parametrize(
    ("write", "kinds"),
    [
        pytest.param(Append(), tuple(POISON), id="append"),
        pytest.param(
            Append(unique=("offset", "time"), watermark=Watermark("time", minutes=60)),
            ("cast",),
            id="unique",
            marks=only_in_full_runs,
        ),
        pytest.param(Upsert(("offset",), sequence_by="time"), ("map", "division"), id="merge"),
        pytest.param(
            Upsert(("offset",), sequence_by="time", scd=2), ("raised",), id="history", marks=only_in_full_runs
        ),
    ],
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
    arrive(spark, name, good(*range(20, 32)))
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
            CASE WHEN offset <> 8 THEN named_struct('inner', named_struct('n', nullif(offset, 9))) END AS part,
            CASE WHEN offset = 5 THEN CAST(X'FFFE00' AS STRING) WHEN offset = 6 THEN CAST(X'00FF' AS STRING) END AS text
        FROM source
    """
    schema = (
        "id BIGINT, time TIMESTAMP, day DATE, more ARRAY<STRUCT<at: TIMESTAMP>>, required STRING NOT NULL, "
        "part STRUCT<inner: STRUCT<n: BIGINT NOT NULL>>, text STRING"
    )
    of = table(name, write, schema=schema, transform=transform)
    arrive(spark, name, good(*range(10)))
    run_once(of)
    stored = spark.read.format("delta").load(str(locations.table_path(of.name))).selectExpr("id", "hex(text) AS text")
    assert {row["id"]: row["text"] for row in stored.collect()} == {0: None, 5: "FFFE00", 6: "00FF", 7: None}
    quarantined = spark.read.format("delta").load(str(locations.table_path(of.quarantine)))
    assert {row["id"]: row["_rules"] for row in quarantined.select("id", "_rules").collect()} == {
        1: ["times within the years 1 to 9999"],
        2: ["times within the years 1 to 9999"],
        3: ["times within the years 1 to 9999"],
        4: ["values in columns that are NOT NULL"],
        8: ["values in columns that are NOT NULL"],
        9: ["values in columns that are NOT NULL"],
    }
    assert "every row accounted for" in verify.lines(verify.verify(of))[0]


def test_a_row_that_breaks_a_check_constraint_is_quarantined_by_its_name(spark, run_once, name):
    of = table(name)
    arrive(spark, name, good(1))
    run_once(of)
    path = locations.table_path(of.name)
    spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT small CHECK (amount < 100)")
    arrive(spark, name, good(2, 500))
    run_once(of)
    assert sorted(row["offset"] for row in rows_of(of.name)) == [1, 2]
    assert [(row["offset"], row["_rules"]) for row in rows_of(of.quarantine)] == [(500, ["constraint small"])]


def sums(rows):
    from pyspark.sql import functions as F

    rows = rows.withColumn("value", F.expr("IF(kind = 'cast', CAST(text AS BIGINT), amount)"))
    latest = F.expr("max(IF(text = 'far', time + INTERVAL 8000 YEARS, time))")
    return rows.groupBy("hour").agg(F.sum("value").alias("total"), latest.alias("latest"), F.max("kind").alias("kind"))


def test_an_aggregate_leaves_out_a_source_row_that_fails_and_names_a_bucket_that_fails_as_a_whole(
    spark, run_once, name
):
    schema = f"{SOURCE}, time TIMESTAMP"

    def add(*rows: tuple[int, str | None, str | None, int]) -> None:
        frame = spark.createDataFrame(
            [("events", 0, hour, kind, text, amount, datetime(2026, 3, 1, hour)) for hour, kind, text, amount in rows],
            schema,
        )
        path = str(locations.table_path(f"bronze.{name}"))
        frame.coalesce(1).write.format("delta").mode("append").save(path)

    by_hour = Upsert(keys=("hour",), recompute=Bucket("hour", of="time", unit="hour"))
    columns = "hour TIMESTAMP, total BIGINT, latest TIMESTAMP, kind STRING NOT NULL"
    of = table(name, by_hour, schema=columns, transform=sums)
    most = 2**63 - 1
    add((1, "good", None, 5), (1, "cast", "x", 1), (2, "good", None, 7), (3, "good", None, most), (3, "good", None, 1))
    add((4, None, "far", 1))
    run_once(of)
    add((1, "good", None, 6), (2, "good", None, 1))
    run_once(of)
    assert {row["hour"].hour: row["total"] for row in rows_of(of.name)} == {1: 11, 2: 8}
    failed = [(row["_failed_reason"], json.loads(row["_failed_record"])) for row in rows_of(of.quarantine)]
    of_rows = {record["text"]: reason for reason, record in failed if "text" in record}
    assert of_rows.keys() == {"x", "far"} and of_rows["x"].startswith("[CAST_INVALID_INPUT")
    assert f"{storable.TIMES} and {storable.NOT_NULL}" in of_rows["far"]
    (of_bucket,) = [(reason, record) for reason, record in failed if "bucket" in record]
    assert "overflow" in of_bucket[0].lower() and of_bucket[1] == {"bucket": "2026-03-01T03:00:00+00:00"}
    verify.verify(of)


def total_of_all(rows):
    from pyspark.sql import functions as F

    return rows.groupBy("topic").agg(F.sum("amount").alias("total"))


@only_in_full_runs
def test_an_aggregate_without_buckets_leaves_out_the_row_with_which_it_fails_or_a_batch_by_approval(
    spark, run_once, name, monkeypatch
):
    of = table(name, Upsert(keys=("topic",)), schema="topic STRING, total BIGINT", transform=total_of_all)
    most = 2**63 - 1
    arrive(spark, name, [("events", 0, 0, "good", None, most - 1), ("events", 0, 1, "good", None, 1)])
    run_once(of)
    for offset in (2, 3):
        arrive(spark, name, good(offset))
        run_once(of)
    left_out = {json.loads(row["_failed_record"])["offset"]: row["_failed_reason"] for row in rows_of(of.quarantine)}
    assert sorted(left_out) == [2, 3]
    assert left_out[2].startswith("together with other rows: [ARITHMETIC_OVERFLOW")
    assert [row["total"] for row in rows_of(of.name)] == [most]
    monkeypatch.setattr(bisection, "MOST_TOGETHER", 0)
    arrive(spark, name, good(4))
    with pytest.raises(FlowBroken, match="batch 3 fails, and no row of it alone .*action skip"):
        run_once(of)
    command = Command(Action.SKIP, (of.flow,), "ann", "too large", planned=reset.planned(of))
    commands.execute(database.connect(settings().control_url), command)
    arrive(spark, name, [("others", 0, 5, "good", None, 7)])
    run_once(of)
    assert sorted(row["total"] for row in rows_of(of.name)) == [7, most]
    verify.verify(of)


@only_in_full_runs
def test_poison_behind_a_lookup_a_step_and_a_change_feed_is_quarantined_alike(spark, run_once, name):
    arrive(spark, name, good(1))
    path = locations.table_path(f"bronze.{name}")
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')")
    labels = locations.table_path(f"silver.{name}_labels")
    frame = spark.createDataFrame([(1, "1"), (2, "x"), (3, "3")], "amount BIGINT, label STRING")
    frame.coalesce(1).write.format("delta").save(str(labels))
    lookup = Lookup(f"silver.{name}_labels", on="amount", columns=("label",))
    columns = {"schema": "offset BIGINT, value BIGINT"}
    query = "SELECT offset, CAST({} AS BIGINT) AS value FROM source"
    looked_up = table(name, lookups=(lookup,), transform=query.format("label"), **columns)
    step = Flow(
        name=f"silver.{name}_step",
        comment="",
        source=Delta(f"bronze.{name}"),
        schema="offset BIGINT, twice BIGINT",
        transform="SELECT offset, 2 * CAST(text AS BIGINT) AS twice FROM source",
        temporary=True,
    )
    stepped = replace(table(name, transform=query.format("twice"), **columns), name=f"gold.{name}_stepped")
    stepped = replace(stepped, source=Delta(step.name))
    stepped = inline_steps({step.name: step, stepped.name: stepped})[0][stepped.name]
    feed = table(
        name,
        Upsert(("offset",), sequence_by="_commit_version", deletes="_change_type = 'delete'"),
        source=Delta(f"bronze.{name}", changes=True),
        transform="SELECT offset, CAST(text AS BIGINT) AS value, _commit_version, _change_type FROM source",
        schema="offset BIGINT, value BIGINT, _commit_version BIGINT, _change_type STRING",
    )
    feed = replace(feed, name=f"gold.{name}_feed")
    flows = (looked_up, stepped, feed)
    run_once(*flows)
    arrive(
        spark, name, [("events", 0, offset, "good", text, offset) for offset, text in ((2, "2"), (3, "x"), (4, "4"))]
    )
    run_once(*flows)
    stored = [sorted(row["offset"] for row in rows_of(flow.name)) for flow in flows]
    assert stored == [[1, 3, 4], [1, 2, 4], [1, 2, 4]]
    failed = [[json.loads(row["_failed_record"])["offset"] for row in rows_of(flow.quarantine)] for flow in flows]
    assert failed == [[2], [3], [3]]
    for flow in flows:
        verify.verify(flow)


def test_a_file_with_a_row_that_its_table_cannot_hold_is_quarantined_and_the_others_are_read(spark, run_once, name):
    landing = Landing(name)
    bronze = replace(landing.table(), schema="a STRING, b STRING", partition_by=("b",))
    landing.drop("1.csv", "a,b\n1,x\n")
    run_once(bronze)
    spark.sql(f"ALTER TABLE delta.`{locations.table_path(bronze.name)}` ADD CONSTRAINT short CHECK (length(a) < 3)")
    landing.drop("2.csv", "a,b\n1,x\nlonger,x\n")
    landing.drop("3.csv", "a,b\n3,y\n")
    landing.drop("4.csv", f"a,b\n4,{'ü' * 127}\n")
    landing.drop("5.csv", "b\nx\n")
    landing.drop("6.csv", 'a,b\n6,""\n')
    landing.drop("7.csv", "a,b\n7,__HIVE_DEFAULT_PARTITION__\n")
    landing.drop("8.csv", "a,b\n8,\n")
    run_once(bronze)
    assert landing.rows() == {"1.csv": [{"a": "1", "b": "x"}], "3.csv": [{"a": "3", "b": "y"}], "8.csv": [{"a": "8"}]}
    reasons = {row["_filename"]: row["_reason"] for row in rows_of(bronze.quarantine)}
    assert {file: reason.partition("breaks: ")[2].partition(" SQLSTATE")[0] for file, reason in reasons.items()} == {
        "2.csv": "constraint short",
        "4.csv": storable.FOLDERS,
        "5.csv": "constraint short",
        "6.csv": storable.FOLDERS,
        "7.csv": storable.FOLDERS,
    }
    assert {rule for row in rows_of(bronze.quarantine) for rule in row["_rules"]} == {"not storable"}
    assert verify.verify(bronze)


def test_text_of_a_partition_that_names_no_folder_is_quarantined(spark, run_once, name):
    of = table(
        name, schema="offset BIGINT, text STRING", partition_by=("text",), transform="SELECT offset, text FROM source"
    )
    # Of 255 bytes, `text=` takes 5, and % with two digits stands for some characters.
    fits = ["ü" * 125, "/" * 83, "\n" * 83 + "x", "%2F" * 50, "x" * 250, "'=?}", None]
    fits += [" ", "\t", ".", "..", " x ", "__hive_default_partition__", "NULL", "\u2028"]
    too_long = ["ü" * 125 + "x", "/" * 84, "\n" * 83 + "xy", "%2F" * 51, "x" * 251, "\x00"]
    as_null = ["", "__HIVE_DEFAULT_PARTITION__"]
    rows = [("events", 0, offset, "good", text, offset) for offset, text in enumerate([*fits, *too_long, *as_null])]
    arrive(spark, name, rows)
    run_once(of)
    assert [row["text"] for row in sorted(rows_of(of.name), key=lambda row: row["offset"])] == fits
    assert {row["text"]: row["_rules"] for row in rows_of(of.quarantine)} == {
        text: [storable.FOLDERS] for text in (*too_long, *as_null)
    }
    assert verify.verify(of)
