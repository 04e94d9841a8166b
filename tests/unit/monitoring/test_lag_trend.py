"""The trend of a flow: growth of its source against the rows that it read, for handmade commits."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from include.control.supervision.lag_history import TREND_SECONDS
from include.flows.lag import SourceSnapshot
from include.monitoring import lag, trend
from include.monitoring.trend import Direction, Trend
from include.spec import Delta, Files, Flow, Kafka, Table, Upsert
from tests.support import lake
from tests.support.lake import checkpoint, delta_offset
from tests.support.topic import Topic

SOURCE = "bronze.events"
READER = Flow(name="silver.readings", source=Delta(SOURCE), comment="")


pytestmark = pytest.mark.usefixtures("home")


def trend_of(flow: Table) -> Trend:
    sources = SourceSnapshot([flow], TREND_SECONDS)
    return trend.of(flow, lag.lag_of(flow, sources), sources)


def commit_batch(flow: Table, committed_at: float, end_offset: object, **metadata: object) -> None:
    """Write a commit of the flow, whose metadata names the end of its batch."""
    lake.rows(flow.name, committed_at, 1, flow=flow.flow, generation=1, source_to=end_offset, **metadata)


def test_who_reads_faster_than_rows_come_in_is_catching_up_and_will_be_done():
    """The flow lags according to some monitors, because its processing rate stays above its input rate."""
    current_time = time.time()
    for minutes in (60, 50, 40, 30, 20, 15):
        lake.rows(SOURCE, current_time - minutes * 60, 1_000)
    for minutes in (8, 5, 2):
        lake.rows(SOURCE, current_time - minutes * 60, 200)
    commit_batch(READER, current_time - 900, delta_offset(1))
    commit_batch(READER, current_time - 300, delta_offset(4))
    checkpoint(READER.flow, delta_offset(4))
    trend = trend_of(READER)
    assert (trend.verdict, trend.unit, trend.arrived, trend.read) == (Direction.CATCHING_UP, "rows", 600, 3_000)
    # 2,600 rows are unread, and in ten minutes they become 2,400 fewer.
    assert trend.caught_up_in_seconds == pytest.approx(2_600 / 2_400 * 600)
    assert trend.words == "catching up: 600 rows came, 3,000 were read in 600 s, up to date in 11 min"


def test_who_reads_less_than_comes_in_is_falling_behind_however_fast_it_reads():
    current_time = time.time()
    lake.rows(SOURCE, current_time - 3_600, 10)
    for minutes in (9, 8, 7, 6, 5):
        lake.rows(SOURCE, current_time - minutes * 60, 1_000_000)
    commit_batch(READER, current_time - 900, delta_offset(1))
    commit_batch(READER, current_time - 60, delta_offset(4))
    checkpoint(READER.flow, delta_offset(4))
    trend = trend_of(READER)
    assert (trend.verdict, trend.arrived, trend.read) == (Direction.FALLING_BEHIND, 5_000_000, 3_000_000)
    assert trend.caught_up_in_seconds is None


def test_who_does_nothing_falls_behind_when_something_comes_and_else_stands_still():
    current_time = time.time()
    lake.rows(SOURCE, current_time - 3_600, 10)
    commit_batch(READER, current_time - 3_500, delta_offset(0))
    checkpoint(READER.flow, delta_offset(0))
    assert trend_of(READER).verdict is Direction.STANDING_STILL
    lake.rows(SOURCE, current_time - 30, 5)
    assert trend_of(READER).verdict is Direction.FALLING_BEHIND


def test_who_has_read_all_is_up_to_date_and_who_lacks_only_what_just_came_keeps_up():
    current_time = time.time()
    lake.rows(SOURCE, current_time - 3_600, 10)
    checkpoint(READER.flow, delta_offset(1))
    assert trend_of(READER) == Trend(Direction.UP_TO_DATE)
    lake.rows(SOURCE, current_time - 20, 1_000_000)
    assert trend_of(READER) == Trend(Direction.KEEPING_UP)


def test_a_flow_that_has_no_commit_of_before_is_not_judged():
    current_time = time.time()
    lake.rows(SOURCE, current_time - 3_600, 10)
    lake.rows(SOURCE, current_time - 3_600, 10)
    checkpoint(READER.flow, delta_offset(1))
    assert trend_of(READER) == Trend(Direction.UNKNOWN), "it has no table"
    commit_batch(READER, current_time - 5, delta_offset(1))
    assert trend_of(READER) == Trend(Direction.UNKNOWN)


def test_only_the_commits_of_the_flow_itself_say_where_it_stood():
    current_time = time.time()
    for minutes in (60, 50, 5):
        lake.rows(SOURCE, current_time - minutes * 60, 100)
    commit_batch(READER, current_time - 900, delta_offset(1))
    lake.rows(READER.name, current_time - 890, 1, flow="silver.readings.other", generation=1, source_to=delta_offset(3))
    lake.rows(READER.name, current_time - 880)
    checkpoint(READER.flow, delta_offset(2))
    assert (trend_of(READER).arrived, trend_of(READER).read) == (100, 100)
    assert trend_of(READER).verdict is Direction.KEEPING_DISTANCE


@pytest.mark.parametrize(
    ("samples", "verdict"),
    [
        ([], Direction.FALLING_BEHIND),
        ([10, 20, 30], Direction.KEEPING_DISTANCE),
        ([10, 90, 10, 90, 10, 90, 10, 90], Direction.KEEPING_DISTANCE),
        ([10, 20, 30, 40, 50, 60, 70, 80], Direction.FALLING_BEHIND),
    ],
    ids=["no supervisor", "too few to tell", "saw-tooth", "growing"],
)
def test_status_says_that_a_flow_falls_behind_when_the_supervisor_says_so(samples: list[int], verdict: Direction):
    current_time = time.time()
    lake.rows(SOURCE, current_time - 3_600, 10)
    for minutes in (9, 8, 7, 6, 5):
        lake.rows(SOURCE, current_time - minutes * 60, 1_000_000)
    commit_batch(READER, current_time - 900, delta_offset(1))
    checkpoint(READER.flow, delta_offset(4))
    sources = SourceSnapshot([READER], TREND_SECONDS)
    flow_lag = lag.lag_of(READER, sources)
    flow_trend = trend.of(READER, flow_lag, sources, samples)
    assert (flow_trend.verdict, flow_trend.arrived, flow_trend.read) == (verdict, 5_000_000, 3_000_000)
    if samples:
        assert trend.falls_behind(READER, flow_lag, samples) == (verdict is Direction.FALLING_BEHIND)


def test_a_backlog_that_grows_is_no_alarm_while_the_flow_waits_or_has_read_all_or_has_long_intervals():
    current_time, growing = time.time(), list(range(8))
    lake.rows(SOURCE, current_time - 900, 10)
    lake.rows(SOURCE, current_time - 400, 10)
    in_windows = Upsert(("number",), in_windows=True)
    flows = {
        Direction.WAITING: Flow(name="gold.sums", source=Delta(SOURCE), comment="", write=in_windows),
        Direction.RESTING: replace(READER, name="silver.nightly", schedule="0 3 * * *"),
        Direction.KEEPING_UP: replace(READER, name="silver.hourly", interval_seconds=3_600),
        Direction.UP_TO_DATE: replace(READER, name="silver.idle"),
    }
    checkpoint("silver.idle", delta_offset(2))
    # A version without rows is one more unread version.
    lake.write(SOURCE, current_time - 100)
    sources = SourceSnapshot(flows.values(), TREND_SECONDS)
    for verdict, flow in flows.items():
        flow_lag = lag.lag_of(flow, sources)
        assert trend.of(flow, flow_lag, sources, growing).verdict is verdict
        assert not trend.falls_behind(flow, flow_lag, growing)


def test_a_flow_of_windows_waits_for_its_window():
    current_time = time.time()
    lake.rows(SOURCE, current_time - 3_600, 10)
    aggregate = Flow(name="gold.sums", source=Delta(SOURCE), comment="", write=Upsert(("number",), in_windows=True))
    assert trend_of(aggregate).verdict is Direction.WAITING


def test_files_came_when_they_are_dated_and_were_read_by_later_batches(tmp_path: Path):
    current_time = time.time()
    bills = Flow(name="bronze.bills", source=Files(str(tmp_path / "bills"), format="csv"), comment="")
    (tmp_path / "bills").mkdir()
    ages = {"a": 3_000, "b": 2_000, "c": 1_000, "d": 500, "e": 400, "f": 300, "g": 200}
    for name, age in ages.items():
        (tmp_path / "bills" / f"{name}.csv").write_text("1")
        os.utime(tmp_path / "bills" / f"{name}.csv", (current_time - age, current_time - age))
    log = checkpoint(bills.flow, {"logOffset": 0}, {"logOffset": 1}) / "sources" / "0"
    log.mkdir(parents=True)
    for batch, names in enumerate(("a", "bc")):
        entries = [
            {"path": f"file://{tmp_path}/bills/{name}.csv", "timestamp": int((current_time - ages[name]) * 1000)}
            for name in names
        ]
        (log / str(batch)).write_text(
            "\n".join(["v1", *(json.dumps({**entry, "batchId": batch}) for entry in entries)])
        )
    commit_batch(bills, current_time - 900, {"logOffset": 0}, batch=0)
    commit_batch(bills, current_time - 60, {"logOffset": 1}, batch=1)
    trend = trend_of(bills)
    assert (trend.verdict, trend.unit, trend.arrived, trend.read) == (Direction.FALLING_BEHIND, "files", 4, 2)


def test_kafka_is_asked_what_it_held_then(broker):
    current_time = time.time()
    topic = Topic(broker).create(partitions=2)
    topic.send_at(current_time - 3_600, *range(20)).send_at(current_time - 300, *range(6))
    flow = Flow(name="bronze.events", source=Kafka(topic.name), comment="")
    commit_batch(flow, current_time - 900, {topic.name: {"0": 2, "1": 2}})
    checkpoint(flow.flow, {topic.name: {"0": 4, "1": 3}})
    trend = trend_of(flow)
    assert (trend.verdict, trend.unit, trend.arrived, trend.read) == (Direction.FALLING_BEHIND, "records", 6, 3)
    checkpoint(flow.flow, {topic.name: {"0": 10, "1": 9}})
    trend = trend_of(flow)
    assert (trend.verdict, trend.arrived, trend.read) == (Direction.CATCHING_UP, 6, 15)
    assert trend.caught_up_in_seconds == pytest.approx(7 / 9 * 600)
    quiet_topic = Topic(broker).create().send_at(current_time - 3_600, "a")
    quiet_flow = Flow(name="bronze.still", source=Kafka(quiet_topic.name), comment="")
    commit_batch(quiet_flow, current_time - 900, {quiet_topic.name: {"0": 0}})
    assert trend_of(quiet_flow).arrived == 0
