"""Rows of a source that make a job fail: it leaves them out with their reason, as a flow does, and goes on."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from include.catalog import Catalog
from include.engine.preview import preview_report
from include.engine.preview.preview import PreviewRequest, previews
from include.errors import FlowBroken
from include.lake import locations
from include.ledger import verify
from include.rules import FAILED
from include.spec import Append, Bucket, Delta, Expect, Flow, Kafka, Replace, Table, Upsert
from tests.support.backfills import Backfills
from tests.support.flows import FULL, only_in_full_runs, rows_of

SOURCE = "topic STRING, partition INT, offset BIGINT, text STRING, time TIMESTAMP"
TRANSFORM = "SELECT offset, time, CAST(text AS BIGINT) AS value FROM source"
MERGE = Upsert(("offset",), sequence_by="offset")
BY_WRITE_MODE = pytest.mark.parametrize(
    "write", [Append(), pytest.param(MERGE, marks=only_in_full_runs)], ids=["append", "merge"]
)


def arrive(spark, name: str, *texts: str, hours: tuple[int, ...] = ()) -> None:
    """Appends rows as one file: of the offsets 0, 1 and so on, and of the same hours."""
    path = str(locations.table_path(f"bronze.{name}"))
    first = spark.read.format("delta").load(path).count() if locations.is_stored(f"bronze.{name}") else 0
    moments = hours or range(first, first + len(texts))
    rows = [
        ("events", 0, offset, text, at(hour))
        for offset, (text, hour) in enumerate(zip(texts, moments, strict=True), first)
    ]
    spark.createDataFrame(rows, SOURCE).coalesce(1).write.format("delta").mode("append").save(path)


def at(hour: int) -> datetime:
    return datetime.fromtimestamp(hour * 3600, UTC).replace(tzinfo=None)


def table(source: str, write=Append(), transform=TRANSFORM, **options) -> Table:  # noqa: B008
    schema = "offset BIGINT, time TIMESTAMP, value BIGINT"
    time_column = "time" if isinstance(write, Append) else None
    declared = {"comment": "", "source": Delta(f"bronze.{source}"), "schema": schema, "time_column": time_column}
    declared |= {"name": f"silver.{source}", "write": write, "transform": transform}
    return Flow(**{**declared, **options})


def values(of: Table) -> dict[int, int]:
    return {row["offset"]: row["value"] for row in rows_of(of.name)}


def failed(of: Table) -> dict[int, str]:
    """Why rows of the source are in the quarantine, by offset."""
    rows = [row for row in rows_of(of.quarantine) if row["_rules"] == [FAILED]]
    return {json.loads(row["_failed_record"])["offset"]: row["_failed_reason"] for row in rows}


@BY_WRITE_MODE
def test_a_backfill_leaves_out_rows_that_fail_and_takes_back_those_that_fail_no_more(spark, run_once, name, write):
    of = table(name, write)
    arrive(spark, name, "x", "3", "2", "y")
    run_once(of)
    assert sorted(failed(of)) == [0, 3]
    fixed = table(name, write, TRANSFORM.replace("(text", "(IF(text = '3', 'three', nullif(text, 'x'))"))
    hours = (0, 3 * 3600) if isinstance(write, Append) else (None, None)
    Backfills(spark, (fixed,)).run(fixed, *hours)
    assert values(fixed) == {0: None, 2: 2}
    assert sorted(failed(fixed)) == [1, 3]
    assert failed(fixed)[1].startswith("[CAST_INVALID_INPUT] The value 'three'")
    assert "every row accounted for" in verify.lines(verify.verify(fixed))[0]


@only_in_full_runs
@pytest.mark.parametrize("write", [Append(), MERGE], ids=["append", "merge"])
def test_a_backfill_by_the_same_code_changes_nothing_and_one_by_broken_code_replaces_nothing(
    spark, run_once, name, write
):
    of = table(name, write)
    arrive(spark, name, "0", "x", "2", "y")
    run_once(of)
    hours = (0, 3 * 3600) if isinstance(write, Append) else (None, None)
    Backfills(spark, (of,)).run(of, *hours)
    assert (sorted(failed(of)), values(of)) == ([1, 3], {0: 0, 2: 2})
    broken = table(name, write, TRANSFORM.replace("(text", "(text || '!'"))
    with pytest.raises(
        FlowBroken, match="every row of the backfill .* that was tried fails, the first at topic events"
    ):
        Backfills(spark, (broken,)).run(broken, *hours)
    assert (sorted(failed(of)), values(of)) == ([1, 3], {0: 0, 2: 2})


def test_a_backfill_quarantines_rows_that_break_a_check_constraint(spark, run_once, name):
    of = table(name)
    arrive(spark, name, "1", "2")
    run_once(of)
    path = locations.table_path(of.name)
    spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT small CHECK (value < 100)")
    larger = table(name, transform=TRANSFORM.replace("AS BIGINT)", "AS BIGINT) * IF(offset = 1, 100, 1)"))
    Backfills(spark, (larger,)).run(larger, as_a_whole=True)
    assert values(of) == {0: 1}
    assert [(row["offset"], row["_rules"]) for row in rows_of(of.quarantine)] == [(1, ["constraint small"])]


def total(rows):
    from pyspark.sql import functions as F

    return rows.groupBy("hour").agg(F.sum(F.expr("CAST(text AS BIGINT)")).alias("total"))


@BY_WRITE_MODE
def test_a_replay_tries_rows_again_that_failed(spark, run_once, replay, name, write):
    of = table(name, write, expect=(Expect("small", "value IS NULL OR value < 100"),))
    arrive(spark, name, "0", "x", "y", "3", "z")
    run_once(of)
    assert (sorted(failed(of)), sorted(values(of))) == ([1, 2, 4], [0, 3])
    fixed = replace(
        of, transform=TRANSFORM.replace("(text", "(CASE text WHEN 'x' THEN 1 WHEN 'z' THEN 200 ELSE text END")
    )
    replay(fixed)
    assert values(fixed) == {0: 0, 1: 1, 3: 3}
    assert sorted(failed(fixed)) == [2]
    assert [(row["offset"], row["_rules"]) for row in rows_of(of.quarantine) if row["value"]] == [(4, ["small"])]
    assert {row["offset"]: row["time"] for row in rows_of(fixed.name)}[1] == at(1).replace(tzinfo=UTC)
    verify.verify(fixed)


def test_a_preview_says_which_rows_the_flow_would_quarantine_and_why(spark, name):
    arrive(spark, name, "0", "x", "2")
    of = table(name)
    by_day = Upsert(keys=("hour",), recompute=Bucket("hour", of="time", unit="day"))
    aggregate = table(name, by_day, total, name=f"gold.{name}", schema="hour TIMESTAMP, total BIGINT")
    view = table(name, Replace(), name=f"gold.{name}_view", time_column=None)
    broken = table(name, name=f"silver.{name}_broken", transform=TRANSFORM.replace("(text", "(text || '!'"))
    bronze = Flow(name=f"bronze.{name}", comment="", source=Kafka(name), schema=SOURCE)
    tables = Catalog({member.name: member for member in (bronze, of, aggregate, view, broken)})
    for member in (of, aggregate, view) if FULL else (aggregate,):
        (result,) = previews(PreviewRequest(spark, tables, 10), member.name)
        assert result.outcome.ends["quarantine"] == 1
        text = "\n".join(preview_report.lines(result))
        assert "quarantined: topic events, partition 0, offset 1: [CAST_INVALID_INPUT] The value 'x'" in text
        assert f"1 break '{FAILED}'" in text
    (result,) = previews(PreviewRequest(spark, tables, 10), broken.name)
    assert (result.outcome.ends, len(result.failed)) == ({"quarantine": 3}, 3)
    assert "would be BROKEN" in "\n".join(preview_report.lines(result))
    assert not locations.is_stored(of.quarantine)
