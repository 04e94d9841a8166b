"""What becomes of a row that breaks a rule, and how many did, on the real path of a batch."""

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
from include.engine.batch.quality import RowCounts
from include.engine.tables import commit, create_table
from include.errors import FlowBroken, Unreachable
from include.monitoring import row_outcomes
from include.readers.delta_log import DeltaLog
from include.rules import Expect, not_null, one_of, references, unique
from include.settings import settings
from include.spec import Append, Delta, Json, Table, Watermark
from tests.conftest import ROOT
from tests.support.batches import BatchWriter
from tests.support.flows import rows_of

SCHEMA = "device STRING, time TIMESTAMP, bpm INT, place BIGINT"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
FOUR = (
    Expect("has a device", "device IS NOT NULL", "warn"),
    Expect("is alive", "bpm > 0", "drop"),
    Expect("is plausible", "bpm < 250", "quarantine"),
    Expect("is no cat", "device <> 'cat'", "fail"),
)


@pytest.fixture
def table() -> Table:
    name = f"t{uuid.uuid4().hex[:12]}"
    return Table(
        name=f"silver.{name}", comment="readings", source=Delta(f"bronze.{name}"), schema=SCHEMA, expect=FOUR[:3]
    )


@pytest.fixture
def batches(spark: SparkSession, tmp_path: Path) -> BatchWriter:
    return BatchWriter(spark, tmp_path, SCHEMA)


def places(name: str) -> list[int]:
    return sorted(row["place"] for row in rows_of(name))


def is_stored(name: str) -> bool:
    return (settings().table_path(name) / "_delta_log").is_dir()


def test_of_several_rules_the_strictest_decides_and_each_is_counted(table, batches):
    said = batches.write(
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
    # NULL breaks both of the rules about it, and quarantine goes before drop.
    assert places(table.quarantine) == [4, 5, 6]
    assert (said.read, said.written, said.duplicates, said.quarantined, said.dropped) == (7, 2, 0, 3, 2)
    assert said.broke == {"has a device": 3, "is alive": 4, "is plausible": 3}
    names = {row["place"]: row["_rules"] for row in rows_of(table.quarantine)}
    assert names[6] == ["has a device", "is alive", "is plausible"]


def test_a_rule_that_fails_ends_the_flow_before_anything_of_the_batch_is_written(table, batches):
    strict = replace(table, expect=FOUR)
    batches.write(strict, [("a", NOON, 60, 0)])
    rows = [("a", NOON, 60, 1), ("cat", NOON, 300, 2), ("cat", NOON, 60, 3), (None, NOON, 60, 4)]
    with pytest.raises(FlowBroken) as broken:
        batches.write(strict, rows)
    assert broken.value.error == "EXPECTATION_FAILED"
    sentence = str(broken.value)
    assert sentence.startswith(f"{table.name}: batch 1 of generation 1 breaks 'is no cat' (3 rows), and nothing of it ")
    assert "'reservoirVersion': 1," in sentence
    assert "'reservoirVersion': 2," in sentence
    assert sentence.endswith(": mend the rule or the transform and restart, or let the rule say otherwise='quarantine'")
    assert (places(table.name), places(table.quarantine)) == ([0], [])
    mended = replace(strict, expect=(*FOUR[:3], replace(FOUR[3], otherwise="quarantine")))
    said = batches.write_again(mended, rows)
    assert (places(table.name), places(table.quarantine)) == ([0, 1], [2, 3, 4])
    assert said.broke["is no cat"] == 3


def test_a_table_whose_rules_only_warn_or_drop_has_no_quarantine(table, batches):
    mild = replace(table, expect=FOUR[:2])
    said = batches.write(mild, [(None, NOON, 0, 0), (None, NOON, 60, 1)])
    assert (said.read, said.written, said.dropped) == (2, 1, 1)
    assert not is_stored(table.quarantine)


def test_a_rule_that_quarantines_no_more_takes_back_what_an_unfinished_try_has_quarantined(table, batches, monkeypatch):
    rows = [("a", NOON, 300, 0), ("a", NOON, 60, 1)]

    def fail(*arguments, **named):
        raise OSError("the disk is gone")

    with monkeypatch.context() as patched:
        patched.setattr(commit, "commit", fail)
        with pytest.raises(OSError, match="the disk is gone"):
            batches.write(table, rows)
    assert places(table.quarantine) == [0]
    batches.write_again(replace(table, expect=(replace(FOUR[2], otherwise="warn"),)), rows)
    assert (places(table.name), places(table.quarantine)) == ([0, 1], [])


def test_a_unique_column_admits_the_first_row_of_its_batch_that_nothing_else_keeps_out(table, batches):
    only = replace(
        table, expect=(unique("device"), Expect("is plausible", "bpm < 250")), write=Append(first_by=("place",))
    )
    said = batches.write(
        only, [("b", NOON, 60, 2), ("b", NOON, 61, 1), ("c", NOON, 300, 3), ("c", NOON, 60, 4), (None, NOON, 60, 5)]
    )
    assert (places(table.name), places(table.quarantine)) == ([1, 4], [2, 3, 5])
    assert said.broke == {"device unique": 2, "is plausible": 1}
    batches.write(only, [("b", NOON, 60, 6), ("d", NOON, 60, 7), ("c", NOON, 60, 8)])
    assert (places(table.name), places(table.quarantine)) == ([1, 4, 7], [2, 3, 5, 6, 8])


def test_which_of_several_equal_keys_is_first_hangs_on_the_rows_and_not_on_their_order(table, batches, spark, tmp_path):
    once = replace(table, expect=(unique("device"),))
    (tmp_path / "again").mkdir()
    rows = [("b", NOON, n, n) for n in (5, 3, 9)]
    batches.write(once, spark.createDataFrame(rows, SCHEMA).repartition(3))
    again = replace(once, name=f"{table.name}_again")
    BatchWriter(spark, tmp_path / "again", SCHEMA).write(again, sorted(rows))
    assert places(again.name) == places(once.name)


def test_a_reference_is_looked_for_in_what_the_other_table_holds_now(table, batches):
    other = replace(table, name=f"{table.name}_devices", expect=())
    only = replace(table, expect=(references("device", other.name, "device"),))
    with pytest.raises(Unreachable, match=f"looks into {other.name}, which is not stored yet: start the flow"):
        batches.write(only, [("a", NOON, 60, 0)])
    devices = [(device, NOON, 1, 0) for device in ("a", "b", "b")]
    create_table.create(batches.spark, other)
    commit.append(batches.spark.createDataFrame([*devices, (None, NOON, 1, 0)], SCHEMA), other)
    rows = [("a", NOON, 60, 0), ("b", NOON, 60, 1), ("c", NOON, 60, 2), (None, NOON, 60, 3)]
    said = batches.write_again(only, rows)
    assert (places(table.name), places(table.quarantine)) == ([0, 1], [2, 3])
    assert said.broke == {f"device in {other.name}": 2}
    commit.append(batches.spark.createDataFrame([("c", NOON, 1, 0)], SCHEMA), other)
    batches.write(only, [("c", NOON, 60, 4)])
    assert places(table.name) == [0, 1, 4]


def test_one_of_a_set_takes_its_values_literally(table, batches):
    said = batches.write(
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
    assert said.broke == {"device in set": 2, "bpm in set": 1, "device and time not null": 2}


def test_the_counts_of_each_batch_are_read_without_a_jvm(table, batches):
    batches.write(table, [("a", NOON, 60, 0), ("a", NOON, 300, 1)])
    batches.write(table, [("a", NOON, 60, 2), (None, NOON, 60, 3)])
    found = row_outcomes.batches(table, 20)
    assert [(one.batch, one.read, one.written, one.quarantined) for one in found] == [(1, 2, 2, 0), (0, 2, 1, 1)]
    rules = {rule.name: rule for rule in row_outcomes.rules(table, found)}
    assert rules["is plausible"].pass_rate == 0.75
    assert rules["has a device"].broke == 1
    assert [one.batch for one in row_outcomes.batches(table, 1)] == [1]
    forgotten = row_outcomes.rules(replace(table, expect=()), found)
    assert [(rule.name, rule.otherwise) for rule in forgotten][0] == ("has a device", None)


def test_counting_costs_no_job_of_its_own(table, batches, spark):
    def jobs_of(rules: tuple, number: int) -> int:
        named = replace(table, name=f"{table.name}_{number}", expect=rules)
        one = BatchWriter(spark, batches.home / str(number), SCHEMA)
        one.home.mkdir()
        rows = [("a", NOON, 60, place) for place in range(10)]
        one.write(named, rows)
        one.life = one.begin_life(named)
        # Not its first, which looks for what an earlier try has left.
        one.life.checkpoint = replace(one.life.checkpoint, written=-1)
        spark.sparkContext.setJobGroup(named.name, "counted")
        one.write(named, rows)
        return len(spark.sparkContext.statusTracker().getJobIdsForGroup(named.name))

    try:
        assert jobs_of(FOUR, 1) == jobs_of((), 2)
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)


def test_a_tally_counts_each_row_once_whatever_it_breaks():
    tally = RowCounts.of([((), 5), (("is alive", "is plausible"), 2), (("has a device",), 1), (("is alive",), 3)], FOUR)
    assert (tally.read, tally.kept, tally.quarantined, tally.dropped) == (11, 6, 2, 3)
    assert tally.broke == {"has a device": 1, "is alive": 5, "is plausible": 2, "is no cat": 0}


def moments() -> st.SearchStrategy:
    return st.integers(-30, 90).map(lambda minutes: (NOON + timedelta(minutes=minutes)).isoformat())


def payloads() -> st.SearchStrategy[bytes | None]:
    wrong = st.one_of(st.none(), st.booleans(), st.floats(allow_nan=False), st.text(max_size=8), st.lists(st.none()))
    fields = st.fixed_dictionaries(
        {},
        optional={
            "device": st.one_of(st.sampled_from("abcdef"), st.none(), st.text(max_size=3)),
            "time": st.one_of(moments(), moments(), wrong),
            "bpm": st.one_of(st.integers(-5, 300), wrong),
        },
    )
    return st.one_of(fields.map(lambda value: json.dumps(value).encode()), st.binary(max_size=40), st.none())


@pytest.fixture(scope="module")
def flow(spark: SparkSession, tmp_path_factory) -> tuple[Table, BatchWriter, list[bytes | None]]:
    """One flow for all examples, and what it was given so far."""
    name = f"t{uuid.uuid4().hex[:12]}"
    made = Table(
        name=f"silver.{name}",
        comment="payloads",
        source=Delta(f"bronze.{name}"),
        parse=Json("value", into=("device", "time", "bpm")),
        schema=f"{SCHEMA}, _errors ARRAY<STRUCT<field: STRING, message: STRING>>",
        write=Append(unique=("device",), first_by=("place",), watermark=Watermark("time", minutes=20)),
        expect=(*FOUR[:3], not_null("time", otherwise="warn")),
    )
    return made, BatchWriter(spark, tmp_path_factory.mktemp("flow"), "value BINARY, place BIGINT"), []


@settings_of(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(payloads(), max_size=40))
def test_whatever_comes_is_written_repeated_quarantined_or_dropped_as_declared(flow, values: list[bytes | None]):
    table, batches, given_so_far = flow
    rows = [(value, len(given_so_far) + place) for place, value in enumerate(values)]
    given_so_far += values
    said = batches.write(table, rows)
    assert said.read == len(values)
    assert said.read == said.written + said.duplicates + said.quarantined + said.dropped
    history = row_outcomes.batches(table, 1_000)
    stored, broken = rows_of(table.name), rows_of(table.quarantine)
    assert sum(one.written for one in history) == len(stored)
    assert sum(one.quarantined for one in history) == len(broken)
    found = Counter(row["place"] for row in stored + broken)
    assert set(found.values()) <= {1}, "a row is doubled"
    known = {row["device"] for row in stored}
    for place in set(range(len(given_so_far))) - set(found):
        # Whatever is nowhere was dropped by its rule, or repeats a device that is stored.
        value = json.loads(given_so_far[place] or b"null")
        is_alive = isinstance(value.get("bpm"), int) and value["bpm"] > 0
        assert not is_alive or value["device"] in known, value


def test_the_ledger_prints_the_counts_for_people_and_for_programs(tmp_path):
    table = catalog.load().tables["silver.tracker_readings"]
    home = tmp_path / "home"
    log = home / "lake" / "silver" / "tracker_readings" / "_delta_log"
    log.mkdir(parents=True)
    rows = {"read": 9, "kept": 6, "quarantined": 3, "dropped": 0, "broke": {"identified": 2, "plausible heart rate": 1}}
    stamp = {"flow": table.name, "generation": 1, "batch": 4, "rows": rows}
    info = {
        "timestamp": 1_800_000_000_000,
        "operation": "WRITE",
        "operationMetrics": {"numOutputRows": "5"},
        "userMetadata": json.dumps(stamp),
    }
    (log / f"{0:020}.json").write_text(json.dumps({"commitInfo": info}))
    assert DeltaLog(log.parent).commit(0).rows == 5

    def run(*options: str) -> str:
        command = [sys.executable, "-m", "include.ledger", "expectations", table.name, *options]
        environment = {**os.environ, "SLUICE_HOME": str(home), "SLUICE_CONTROL_URL": f"sqlite:///{tmp_path}/c.db"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run().splitlines() == [
        "identified (quarantine): 77.78% of 9 rows pass, 2 broke it",
        "plausible heart rate (quarantine): 88.89% of 9 rows pass, 1 broke it",
        "silver.tracker_readings 1/4  2027-01-15 08:00:00Z  version 0: 9 read = 5 written + 1 duplicates + "
        "3 quarantined + 0 dropped; 2 broke 'identified', 1 broke 'plausible heart rate'",
    ]
    found = json.loads(run("--json"))
    assert found["rules"][0]["pass_rate"] == pytest.approx(7 / 9)
    assert found["batches"][0]["duplicates"] == 1
