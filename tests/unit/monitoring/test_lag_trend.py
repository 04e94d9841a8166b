"""Who falls behind and who catches up: growth of the source against what was read of it, on commits made by hand."""

import json
import os
import time
from pathlib import Path

import pytest

from include.monitoring import lag, lag_trend
from include.monitoring.lag_trend import Direction, Trend
from include.monitoring.source_snapshot import SourceSnapshot
from include.spec import Delta, Files, Kafka, Table, Upsert
from tests.support import lake
from tests.support.lake import checkpoint, delta_offset
from tests.support.topic import Topic

SOURCE = "bronze.events"
READER = Table(name="silver.readings", source=Delta(SOURCE), comment="")


pytestmark = pytest.mark.usefixtures("home")


def of(flow: Table) -> Trend:
    sources = SourceSnapshot([flow])
    return lag_trend.of(flow, lag.lag_of(flow, sources), sources)


def stamp(flow: Table, at: float, end: object, **more: object) -> None:
    """A commit of the flow, which says that its batch ended there."""
    lake.rows(flow.name, at, 1, flow=flow.flow, generation=1, source_to=end, **more)


def test_who_reads_faster_than_rows_come_in_is_catching_up_and_will_be_done():
    """The talk calls this flow lagging, as its processing rate stays above its input rate."""
    now = time.time()
    for minutes in (60, 50, 40, 30, 20, 15):
        lake.rows(SOURCE, now - minutes * 60, 1_000)
    for minutes in (8, 5, 2):
        lake.rows(SOURCE, now - minutes * 60, 200)
    stamp(READER, now - 900, delta_offset(1))
    stamp(READER, now - 300, delta_offset(4))
    checkpoint(READER.flow, delta_offset(4))
    found = of(READER)
    assert (found.verdict, found.unit, found.arrived, found.read) == (Direction.CATCHING_UP, "rows", 600, 3_000)
    # 2,600 rows are unread, and in ten minutes they become 2,400 fewer.
    assert found.caught_up_in_seconds == pytest.approx(2_600 / 2_400 * 600)
    assert found.words == "catching up: 600 rows came, 3,000 were read in 600 s, up to date in 11 min"


def test_who_reads_less_than_comes_in_is_falling_behind_however_fast_it_reads():
    now = time.time()
    lake.rows(SOURCE, now - 3_600, 10)
    for minutes in (9, 8, 7, 6, 5):
        lake.rows(SOURCE, now - minutes * 60, 1_000_000)
    stamp(READER, now - 900, delta_offset(1))
    stamp(READER, now - 60, delta_offset(4))
    checkpoint(READER.flow, delta_offset(4))
    found = of(READER)
    assert (found.verdict, found.arrived, found.read) == (Direction.FALLING_BEHIND, 5_000_000, 3_000_000)
    assert found.caught_up_in_seconds is None


def test_who_does_nothing_falls_behind_when_something_comes_and_else_stands_still():
    now = time.time()
    lake.rows(SOURCE, now - 3_600, 10)
    stamp(READER, now - 3_500, delta_offset(0))
    checkpoint(READER.flow, delta_offset(0))
    assert of(READER).verdict is Direction.STANDING_STILL
    lake.rows(SOURCE, now - 30, 5)
    assert of(READER).verdict is Direction.FALLING_BEHIND


def test_who_has_read_all_is_up_to_date_and_who_lacks_only_what_just_came_keeps_up():
    now = time.time()
    lake.rows(SOURCE, now - 3_600, 10)
    checkpoint(READER.flow, delta_offset(1))
    assert of(READER) == Trend(Direction.UP_TO_DATE)
    lake.rows(SOURCE, now - 20, 1_000_000)
    assert of(READER) == Trend(Direction.KEEPING_UP)


def test_a_flow_that_has_no_commit_of_before_is_not_judged():
    now = time.time()
    lake.rows(SOURCE, now - 3_600, 10)
    lake.rows(SOURCE, now - 3_600, 10)
    checkpoint(READER.flow, delta_offset(1))
    assert of(READER) == Trend(Direction.UNKNOWN), "it has no table"
    stamp(READER, now - 5, delta_offset(1))
    assert of(READER) == Trend(Direction.UNKNOWN)


def test_only_the_commits_of_the_flow_itself_say_where_it_stood():
    now = time.time()
    for minutes in (60, 50, 5):
        lake.rows(SOURCE, now - minutes * 60, 100)
    stamp(READER, now - 900, delta_offset(1))
    lake.rows(READER.name, now - 890, 1, flow="silver.readings.other", generation=1, source_to=delta_offset(3))
    lake.rows(READER.name, now - 880)
    checkpoint(READER.flow, delta_offset(2))
    assert (of(READER).arrived, of(READER).read) == (100, 100)
    assert of(READER).verdict is Direction.KEEPING_DISTANCE


def test_a_flow_of_windows_waits_for_its_window():
    now = time.time()
    lake.rows(SOURCE, now - 3_600, 10)
    merged = Table(name="gold.sums", source=Delta(SOURCE), comment="", write=Upsert(("number",), in_windows=True))
    assert of(merged).verdict is Direction.WAITING


def test_files_came_when_they_are_dated_and_were_read_by_later_batches(tmp_path: Path):
    now = time.time()
    bills = Table(name="bronze.bills", source=Files(str(tmp_path / "bills"), format="csv"), comment="")
    (tmp_path / "bills").mkdir()
    ages = {"a": 3_000, "b": 2_000, "c": 1_000, "d": 500, "e": 400, "f": 300, "g": 200}
    for name, age in ages.items():
        (tmp_path / "bills" / f"{name}.csv").write_text("1")
        os.utime(tmp_path / "bills" / f"{name}.csv", (now - age, now - age))
    log = checkpoint(bills.flow, {"logOffset": 0}, {"logOffset": 1}) / "sources" / "0"
    log.mkdir(parents=True)
    for entry, names in enumerate(("a", "bc")):
        taken = [
            {"path": f"file://{tmp_path}/bills/{name}.csv", "timestamp": int((now - ages[name]) * 1000)}
            for name in names
        ]
        (log / str(entry)).write_text("\n".join(["v1", *(json.dumps({**one, "batchId": entry}) for one in taken)]))
    stamp(bills, now - 900, {"logOffset": 0}, batch=0)
    stamp(bills, now - 60, {"logOffset": 1}, batch=1)
    found = of(bills)
    assert (found.verdict, found.unit, found.arrived, found.read) == (Direction.FALLING_BEHIND, "files", 4, 2)


def test_kafka_is_asked_what_it_held_then(broker):
    now = time.time()
    topic = Topic(broker).create(partitions=2)
    topic.send_at(now - 3_600, *range(20)).send_at(now - 300, *range(6))
    flow = Table(name="bronze.events", source=Kafka(topic.name), comment="")
    stamp(flow, now - 900, {topic.name: {"0": 2, "1": 2}})
    checkpoint(flow.flow, {topic.name: {"0": 4, "1": 3}})
    found = of(flow)
    assert (found.verdict, found.unit, found.arrived, found.read) == (Direction.FALLING_BEHIND, "records", 6, 3)
    checkpoint(flow.flow, {topic.name: {"0": 10, "1": 9}})
    found = of(flow)
    assert (found.verdict, found.arrived, found.read) == (Direction.CATCHING_UP, 6, 15)
    assert found.caught_up_in_seconds == pytest.approx(7 / 9 * 600)
    quiet = Topic(broker).create().send_at(now - 3_600, "a")
    still = Table(name="bronze.still", source=Kafka(quiet.name), comment="")
    stamp(still, now - 900, {quiet.name: {"0": 0}})
    assert of(still).arrived == 0
