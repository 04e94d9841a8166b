"""Rows that break rules, and their counts, as a real batch writes them."""

import json
import os
import subprocess
import sys
import uuid
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as settings_of
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from include import catalog
from include.delta.delta_log import DeltaLog
from include.engine import commit
from include.engine.rows.quality import RowCounts
from include.engine.tables import create_table
from include.errors import FlowBroken, Unreachable
from include.lake import locations
from include.ledger import row_outcomes
from include.rules import Expect, not_null, one_of, references, unique
from include.spec import CHANGE_RULE, SEQUENCE_RULE, Append, Delta, Flow, Json, Table, Upsert, Watermark
from tests.conftest import ROOT
from tests.support.batches import BatchWriter
from tests.support.flows import rows_of

SCHEMA = "device STRING, time TIMESTAMP, bpm INT, place BIGINT"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
FOUR_RULES = (
    Expect("has a device", "device IS NOT NULL", "warn"),
    Expect("is alive", "bpm > 0", "drop"),
    Expect("is plausible", "bpm < 250", "quarantine"),
    Expect("is no cat", "device <> 'cat'", "fail"),
)


@pytest.fixture
def table() -> Table:
    name = f"t{uuid.uuid4().hex[:12]}"
    return Flow(
        name=f"silver.{name}", comment="readings", source=Delta(f"bronze.{name}"), schema=SCHEMA, expect=FOUR_RULES[:3]
    )


@pytest.fixture
def batches(spark: SparkSession, tmp_path: Path) -> BatchWriter:
    return BatchWriter(spark, tmp_path, SCHEMA)


def places(name: str) -> list[int]:
    return sorted(row["place"] for row in rows_of(name))


def is_stored(name: str) -> bool:
    return (locations.table_path(name) / "_delta_log").is_dir()


def test_of_several_rules_the_strictest_decides_and_each_is_counted(table, batches):
    result = batches.write(
        table,
        [
            ("a", NOON, 60, 0),
            (None, NOON, 60, 1),
            ("a", NOON, 0, 2),
            (None, NOON, -1, 3),
            ("a", NOON, 300, 4),
            ("a", NOON, None, 5),
            (None, NOON, None, 6),
        ],
    )
    assert places(table.name) == [0, 1]
    # NULL breaks both rules about bpm, and quarantine takes precedence over drop.
    assert places(table.quarantine) == [4, 5, 6]
    assert (result.read, result.written, result.duplicates, result.quarantined, result.dropped) == (7, 2, 0, 3, 2)
    assert result.broke == {"has a device": 3, "is alive": 4, "is plausible": 3}
    names = {row["place"]: row["_rules"] for row in rows_of(table.quarantine)}
    assert names[6] == ["has a device", "is alive", "is plausible"]


def test_a_rule_that_fails_ends_the_flow_before_anything_of_the_batch_is_written(table, batches):
    strict_table = replace(table, expect=FOUR_RULES)
    batches.write(strict_table, [("a", NOON, 60, 0)])
    rows = [("a", NOON, 60, 1), ("cat", NOON, 300, 2), ("cat", NOON, 60, 3), (None, NOON, 60, 4)]
    with pytest.raises(FlowBroken) as error:
        batches.write(strict_table, rows)
    assert error.value.error == "EXPECTATION_FAILED"
    sentence = str(error.value)
    assert sentence.startswith(f"{table.name}: batch 1 of generation 1 breaks 'is no cat' (3 rows), and nothing of it ")
    assert "'reservoirVersion': 1," in sentence
    assert "'reservoirVersion': 2," in sentence
    assert sentence.endswith(": fix the rule or the transform and restart, or let the rule say otherwise='quarantine'")
    assert (places(table.name), places(table.quarantine)) == ([0], [])
    mended_table = replace(strict_table, expect=(*FOUR_RULES[:3], replace(FOUR_RULES[3], otherwise="quarantine")))
    result = batches.write_again(mended_table, rows)
    assert (places(table.name), places(table.quarantine)) == ([0, 1], [2, 3, 4])
    assert result.broke["is no cat"] == 3


def test_a_table_whose_rules_only_warn_or_drop_has_no_quarantine(table, batches):
    mild_table = replace(table, expect=FOUR_RULES[:2])
    result = batches.write(mild_table, [(None, NOON, 0, 0), (None, NOON, 60, 1)])
    assert (result.read, result.written, result.dropped) == (2, 1, 1)
    assert not is_stored(table.quarantine)


def test_a_rule_that_quarantines_no_more_takes_back_what_an_unfinished_try_has_quarantined(table, batches, monkeypatch):
    rows = [("a", NOON, 300, 0), ("a", NOON, 60, 1)]

    def fail(*arguments, **keywords):
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(commit, "commit", fail)
        with pytest.raises(OSError, match="the disk is gone"):
            batches.write(table, rows)
    assert places(table.quarantine) == [0]
    batches.write_again(replace(table, expect=(replace(FOUR_RULES[2], otherwise="warn"),)), rows)
    assert (places(table.name), places(table.quarantine)) == ([0, 1], [])


def test_a_unique_column_admits_the_first_row_of_its_batch_that_nothing_else_keeps_out(table, batches):
    unique_table = replace(
        table, expect=(unique("device"), Expect("is plausible", "bpm < 250")), write=Append(first_by=("place",))
    )
    result = batches.write(
        unique_table,
        [("b", NOON, 60, 2), ("b", NOON, 61, 1), ("c", NOON, 300, 3), ("c", NOON, 60, 4), (None, NOON, 60, 5)],
    )
    assert (places(table.name), places(table.quarantine)) == ([1, 4], [2, 3, 5])
    assert result.broke == {"device unique": 2, "is plausible": 1}
    batches.write(unique_table, [("b", NOON, 60, 6), ("d", NOON, 60, 7), ("c", NOON, 60, 8)])
    assert (places(table.name), places(table.quarantine)) == ([1, 4, 7], [2, 3, 5, 6, 8])


def test_which_of_several_equal_keys_is_first_hangs_on_the_rows_and_not_on_their_order(table, batches, spark, tmp_path):
    first_table = replace(table, expect=(unique("device"),))
    (tmp_path / "again").mkdir()
    rows = [("b", NOON, n, n) for n in (5, 3, 9)]
    batches.write(first_table, spark.createDataFrame(rows, SCHEMA).repartition(3))
    second_table = replace(first_table, name=f"{table.name}_again")
    BatchWriter(spark, tmp_path / "again", SCHEMA).write(second_table, sorted(rows))
    assert places(second_table.name) == places(first_table.name)


def test_a_reference_is_looked_for_in_what_the_other_table_holds_now(table, batches):
    device_table = replace(table, name=f"{table.name}_devices", expect=())
    reading_table = replace(table, expect=(references("device", device_table.name, "device"),))
    with pytest.raises(Unreachable, match=f"looks into {device_table.name}, which is not stored yet: start the flow"):
        batches.write(reading_table, [("a", NOON, 60, 0)])
    devices = [(device, NOON, 1, 0) for device in ("a", "b", "b")]
    create_table.create(batches.spark, device_table)
    commit.append(batches.spark.createDataFrame([*devices, (None, NOON, 1, 0)], SCHEMA), device_table)
    rows = [("a", NOON, 60, 0), ("b", NOON, 60, 1), ("c", NOON, 60, 2), (None, NOON, 60, 3)]
    result = batches.write_again(reading_table, rows)
    assert (places(table.name), places(table.quarantine)) == ([0, 1], [2, 3])
    assert result.broke == {f"device in {device_table.name}": 2}
    commit.append(batches.spark.createDataFrame([("c", NOON, 1, 0)], SCHEMA), device_table)
    batches.write(reading_table, [("c", NOON, 60, 4)])
    assert places(table.name) == [0, 1, 4]


def test_one_of_a_set_takes_its_values_literally(table, batches):
    result = batches.write(
        replace(table, expect=(one_of("device", ["it's", "a\\b"]), one_of("bpm", [60]), not_null("device", "time"))),
        [
            ("it's", NOON, 60, 0),
            ("a\\b", NOON, 60, 1),
            ("its", NOON, 60, 2),
            ("it's", None, 61, 3),
            (None, NOON, 60, 4),
        ],
    )
    assert places(table.name) == [0, 1]
    assert result.broke == {"device in set": 2, "bpm in set": 1, "device and time not null": 2}


def test_the_counts_of_each_batch_are_read_without_a_jvm(table, batches):
    batches.write(table, [("a", NOON, 60, 0), ("a", NOON, 300, 1)])
    batches.write(table, [("a", NOON, 60, 2), (None, NOON, 60, 3)])
    history = row_outcomes.batches(table, 20)
    assert [(batch.batch, batch.read, batch.written, batch.quarantined) for batch in history] == [
        (1, 2, 2, 0),
        (0, 2, 1, 1),
    ]
    rules = {rule.name: rule for rule in row_outcomes.rules(table, history)}
    assert rules["is plausible"].pass_rate == 0.75
    assert rules["has a device"].broke == 1
    assert [batch.batch for batch in row_outcomes.batches(table, 1)] == [1]
    removed_rules = row_outcomes.rules(replace(table, expect=()), history)
    assert [(rule.name, rule.otherwise) for rule in removed_rules][0] == ("has a device", None)


def test_counting_costs_no_job_of_its_own(table, batches, spark):
    def count_jobs(rules: tuple, number: int) -> int:
        named_table = replace(table, name=f"{table.name}_{number}", expect=rules)
        writer = BatchWriter(spark, batches.home / str(number), SCHEMA)
        writer.home.mkdir()
        rows = [("a", NOON, 60, place) for place in range(10)]
        writer.write(named_table, rows)
        writer.context = writer.new_context(named_table)
        # The first batch of a context also looks for the rows of an earlier try.
        writer.context.checkpoint = replace(writer.context.checkpoint, written=-1)
        spark.sparkContext.setJobGroup(named_table.name, "counted")
        writer.write(named_table, rows)
        return len(spark.sparkContext.statusTracker().getJobIdsForGroup(named_table.name))

    try:
        assert count_jobs(FOUR_RULES, 1) == count_jobs((), 2)
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)


def test_a_tally_counts_each_row_once_whatever_it_breaks():
    tally = RowCounts.of(
        [((), 5), (("is alive", "is plausible"), 2), (("has a device",), 1), (("is alive",), 3)], FOUR_RULES
    )
    assert (tally.read, tally.kept, tally.quarantined, tally.dropped) == (11, 6, 2, 3)
    assert tally.broke == {"has a device": 1, "is alive": 5, "is plausible": 2, "is no cat": 0}


def times() -> st.SearchStrategy:
    return st.integers(-30, 90).map(lambda minutes: (NOON + timedelta(minutes=minutes)).isoformat())


def payloads() -> st.SearchStrategy[bytes | None]:
    other_values = st.one_of(
        st.none(), st.booleans(), st.floats(allow_nan=False), st.text(max_size=8), st.lists(st.none())
    )
    fields = st.fixed_dictionaries(
        {},
        optional={
            "device": st.one_of(st.sampled_from("abcdef"), st.none(), st.text(max_size=3)),
            "time": st.one_of(times(), times(), other_values),
            "bpm": st.one_of(st.integers(-5, 300), other_values),
        },
    )
    return st.one_of(fields.map(lambda value: json.dumps(value).encode()), st.binary(max_size=40), st.none())


def table_of_payloads() -> Table:
    name = f"t{uuid.uuid4().hex[:12]}"
    return Flow(
        name=f"silver.{name}",
        comment="payloads",
        source=Delta(f"bronze.{name}"),
        parse=Json("value", into=("device", "time", "bpm")),
        schema=f"{SCHEMA}, _errors ARRAY<STRUCT<field: STRING, message: STRING>>",
        write=Append(unique=("device",), first_by=("place",), watermark=Watermark("time", minutes=20)),
        expect=(*FOUR_RULES[:3], not_null("time", otherwise="warn")),
    )


def assert_every_row_is_accounted_for(table: Table, all_values: list[bytes | None]) -> None:
    """all_values: of all batches of the table. The place of a row is the index of its value."""
    history = row_outcomes.batches(table, 1_000)
    stored_rows, quarantined_rows = rows_of(table.name), rows_of(table.quarantine)
    assert sum(batch.written for batch in history) == len(stored_rows)
    assert sum(batch.quarantined for batch in history) == len(quarantined_rows)
    place_counts = Counter(row["place"] for row in stored_rows + quarantined_rows)
    assert set(place_counts.values()) <= {1}, "a row is doubled"
    stored_devices = {row["device"] for row in stored_rows}
    for place in set(range(len(all_values))) - set(place_counts):
        # A row that is stored nowhere was dropped by a rule, or repeats a stored device.
        value = json.loads(all_values[place] or b"null")
        is_alive = isinstance(value.get("bpm"), int) and value["bpm"] > 0
        assert not is_alive or value["device"] in stored_devices, value


@settings_of(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.lists(payloads(), max_size=40), min_size=2, max_size=3))
def test_whatever_comes_is_written_repeated_quarantined_or_dropped_as_declared(
    spark, tmp_path_factory, values_by_batch: list[list[bytes | None]]
):
    """Each example has its own table, with several batches."""
    table = table_of_payloads()
    batches = BatchWriter(spark, tmp_path_factory.mktemp("flow"), "value BINARY, place BIGINT")
    all_values: list[bytes | None] = []
    for values in values_by_batch:
        result = batches.write(table, [(value, len(all_values) + place) for place, value in enumerate(values)])
        all_values += values
        assert result.read == len(values)
        assert result.read == result.written + result.duplicates + result.quarantined + result.dropped
        assert_every_row_is_accounted_for(table, all_values)


def test_the_ledger_prints_the_counts_for_people_and_for_programs(tmp_path):
    table = catalog.load().tables["silver.tracker_readings"]
    home = tmp_path / "home"
    log = home / "lake" / "silver" / "tracker_readings" / "_delta_log"
    log.mkdir(parents=True)
    rows = {"read": 9, "kept": 6, "quarantined": 3, "dropped": 0, "broke": {"identified": 2, "plausible heart rate": 1}}
    metadata = {"flow": table.name, "generation": 1, "batch": 4, "rows": rows}
    info = {
        "timestamp": 1_800_000_000_000,
        "operation": "WRITE",
        "operationMetrics": {"numOutputRows": "5"},
        "userMetadata": json.dumps(metadata),
    }
    (log / f"{0:020}.json").write_text(json.dumps({"commitInfo": info}))
    assert DeltaLog(log.parent).commit(0).rows == 5

    def run(*options: str) -> str:
        command = [sys.executable, "-m", "include.ledger", "expectations", table.name, *options]
        environment = {**os.environ, "SLUICE_HOME": str(home), "SLUICE_CONTROL_URL": f"sqlite:///{tmp_path}/c.db"}
        process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
        assert process.returncode == 0, process.stderr
        return process.stdout

    assert run().splitlines() == [
        "identified (quarantine): 77.78% of 9 rows pass, 2 broke it",
        "plausible heart rate (quarantine): 88.89% of 9 rows pass, 1 broke it",
        "silver.tracker_readings 1/4  2027-01-15 08:00:00Z  version 0: 9 read = 5 written + 1 duplicates + "
        "3 quarantined + 0 dropped; 2 broke 'identified', 1 broke 'plausible heart rate'",
    ]
    document = json.loads(run("--json"))
    assert document["rules"][0]["pass_rate"] == pytest.approx(7 / 9)
    assert document["batches"][0]["duplicates"] == 1


LAST_PLACES = [
    # By type: the last place that others can overtake, and the first that none can.
    ("TINYINT", "126Y", "127Y"),
    ("SMALLINT", "32766S", "32767S"),
    ("INTEGER", "2147483646", "2147483647"),
    ("BIGINT NOT NULL COMMENT 'place'", "9223372036854775806L", "9223372036854775807L"),
    ("decimal(38, 0)", f"{'9' * 37}8BD", f"{'9' * 38}BD"),
    ("DECIMAL(5,2)", "999.98BD", "999.99BD"),
    ("NUMERIC(4,4)", "0.9998BD", "0.9999BD"),
    ("DEC", "9999999998BD", "9999999999BD"),
    ("DOUBLE", "1.7976931348623157E308D", "double('Infinity')"),
    ("FLOAT", "3.4E38F", "float('NaN')"),
    ("DATE", "DATE'9999-12-30'", "DATE'9999-12-31'"),
    ("TIMESTAMP", "TIMESTAMP'9999-12-30 23:59:59.999999 UTC'", "TIMESTAMP'9999-12-31 23:59:59.999 UTC'"),
    ("TIMESTAMP_NTZ", "TIMESTAMP_NTZ'9999-12-30 23:59:59.999999'", "TIMESTAMP_NTZ'9999-12-31 00:00:00'"),
]


def test_a_sequence_is_refused_that_no_later_one_could_overtake_whatever_its_type(spark):
    write = Upsert(("id",), sequence_by="seq")
    conditions = {}
    for number, (type_, *values) in enumerate(LAST_PLACES):
        table = Flow(name="silver.x", comment="", source=Delta("bronze.x"), schema=f"id INT, seq {type_}", write=write)
        [rule] = [rule for rule in table.rules if rule.name == SEQUENCE_RULE]
        for name, value in zip(("before", "last"), values, strict=True):
            conditions[f"{name}_{number}"] = rule.condition.replace("`seq`", f"({value})")
    [row] = spark.sql(f"SELECT {', '.join(f'{text} AS {name}' for name, text in conditions.items())}").collect()
    assert row.asDict() == {name: name.startswith("before") for name in conditions}
    text = Flow(name="silver.x", comment="", source=Delta("bronze.x"), schema="id INT, seq STRING", write=write)
    assert [rule.name for rule in text.rules] == [CHANGE_RULE]
