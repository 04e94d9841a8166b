"""Surveys of real tables and their checkpoints: the maintenance that a table needs now."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow
import pytest
from deltalake import DeltaTable, write_deltalake
from sqlalchemy import Engine

from include.catalog import Catalog
from include.control import vacuum_holds
from include.control.jobs import backfills, store
from include.control.jobs.windows import Window
from include.control.store import database
from include.delta.delta_log import DeltaLog
from include.lake import locations
from include.maintenance import table_survey
from include.maintenance.plan import CLEAN_LOG, MERGE, OPTIMIZE, VACUUM
from include.maintenance.table_survey import CLOCK_SKEW_SECONDS, TableSurvey, WindowPlan
from include.project.ranges import Slice
from include.spec import Bucket, Delta, Expect, Kafka, Maintenance, Replace, Table, Upsert
from tests.support import delta_log
from tests.support.delta_log import commit, commit_info
from tests.support.lake import planned_checkpoint

HOUR, DAY, WEEK = 3_600, 86_400, 604_800
SOURCE, READER = "silver.readings", "gold.by_minute"
# With this many files, the last one is not rewritten for the sake of a few others.
MANY = 20


def source(**maintain: float) -> Table:
    return Table(name=SOURCE, source=Kafka("events"), comment="", maintain=Maintenance(**maintain))


def reader(in_windows: bool = False) -> Table:
    write = Upsert(("minute",), Bucket("minute", of="timestamp", unit="minute"), in_windows)
    return Table(name=READER, source=Delta(SOURCE), comment="", schema="minute TIMESTAMP", write=write)


pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    control_engine = database.connect(f"sqlite:///{tmp_path / 'control.db'}")
    yield control_engine
    control_engine.dispose()


@pytest.fixture
def look(engine: Engine):
    def surveys(table: Table, *others: Table) -> list[TableSurvey]:
        return table_survey.survey(engine, table, Catalog({entry.name: entry for entry in (table, *others)}))

    return surveys


def append(name: str, times: int = 1) -> None:
    for number in range(times):
        write_deltalake(str(locations.table_path(name)), pyarrow.table({"number": [number]}), mode="append")


def append_and_compact(name: str) -> None:
    """Writes versions 0 to 4: three files, their compaction in version 3, and one more file."""
    append(name, times=3)
    DeltaTable(locations.table_path(name)).optimize.compact()
    append(name)


def grow_older(name: str, seconds: float) -> None:
    """Moves all times of the table this many seconds back."""

    def shift(action: dict) -> dict:
        fields = next(iter(action.values()))
        for key in {"timestamp", "deletionTimestamp", "modificationTime"} & fields.keys():
            fields[key] = int(fields[key] - seconds * 1_000)
        return action

    path = locations.table_path(name)
    for file in (path / "_delta_log").glob("*.json"):
        actions = [shift(json.loads(line)) for line in file.read_text().splitlines()]
        file.write_text("\n".join(map(json.dumps, actions)))
    for file in path.glob("*.parquet"):
        modified_at = file.stat().st_mtime - seconds
        os.utime(file, (modified_at, modified_at))


def plan_of(engine: Engine, table: Table, *others: Table) -> WindowPlan:
    return table_survey.plan_window(engine, table, Catalog({entry.name: entry for entry in (table, *others)}))


def test_a_table_that_nobody_stored_has_nothing_to_be_done(engine: Engine):
    plan = plan_of(engine, source())
    assert (plan.surveys, plan.why, plan.is_worth_it) == ([], "the table is not stored yet", False)


def test_the_first_window_of_a_table_that_is_merged_in_windows_makes_it(engine: Engine):
    assert plan_of(engine, reader(in_windows=True)).is_worth_it


def test_the_quarantine_has_a_plan_of_its_own_beside_its_table(look):
    table = Table(
        name=SOURCE, source=Delta("bronze.a"), comment="", schema="number INT", expect=(Expect("known", "TRUE"),)
    )
    append(table.name)
    assert [survey.name for survey in look(table)] == [SOURCE]
    append(table.quarantine, times=2)
    surveys = look(table)
    assert [(survey.name, survey.shape.files) for survey in surveys] == [(SOURCE, 1), ("quarantine.silver_readings", 2)]
    assert {line.partition(":")[0] for survey in surveys for line in survey.lines()} == {
        SOURCE,
        "quarantine.silver_readings",
    }


def test_vacuum_waits_for_a_flow_that_stopped_long_ago_by_whole_hours(look):
    append_and_compact(SOURCE)
    grow_older(SOURCE, 5 * HOUR)
    planned_checkpoint(READER, planned=[2], committed=1)
    [survey] = look(source(time_travel_hours=1), reader())
    assert (survey.held.name, survey.held.version) == (READER, 2)
    assert survey.retention_seconds == 7 * HOUR
    assert survey.would_delete(time.time()) == []
    assert survey.plan.step(VACUUM).numbers["deletable_files"] == 0
    assert survey.lines()[-1] == (
        f"{SOURCE}: VACUUM keeps what was deleted in the last 25,200 s; the oldest version needed is 2, by {READER}"
    )


def test_the_promise_is_kept_where_it_reaches_further_back_than_anybody_else(look):
    append_and_compact(SOURCE)
    grow_older(SOURCE, 5 * HOUR)
    planned_checkpoint(READER, planned=[2], committed=1)
    [survey] = look(source(), reader())
    assert survey.retention_seconds == WEEK + HOUR


def test_what_is_held_is_still_held_when_vacuum_runs_a_while_after_the_look(look, engine: Engine):
    append_and_compact(SOURCE)
    grow_older(SOURCE, 1.5 * HOUR)
    vacuum_holds.register(engine, "report", SOURCE, version=1, hours=48, requester="ann")
    [survey] = look(source(time_travel_hours=1))
    assert survey.would_delete(time.time() + 0.9 * HOUR) == []


def test_a_window_of_four_hours_deletes_at_its_end_nothing_that_is_held_or_promised(look, engine: Engine):
    append_and_compact(SOURCE)
    grow_older(SOURCE, 4.5 * HOUR)
    vacuum_holds.register(engine, "report", SOURCE, version=1, hours=48, requester="ann")
    [survey] = look(source(time_travel_hours=1, longest_minutes=240))
    assert survey.would_delete(time.time() + 3.9 * HOUR) == []
    vacuum_holds.unregister(engine, "report", SOURCE, "ann")
    # OPTIMIZE dates its removals at its begin: the versions before its commit stay for the promised time after it.
    [survey] = look(source(time_travel_hours=24, longest_minutes=240))
    assert survey.retention_seconds == 28 * HOUR


def test_a_flow_that_has_read_on_holds_nothing_back(look):
    append_and_compact(SOURCE)
    grow_older(SOURCE, 5 * HOUR)
    planned_checkpoint(READER, planned=[4], committed=1)
    [survey] = look(source(time_travel_hours=1), reader())
    assert survey.retention_seconds == 2 * HOUR
    assert len(survey.would_delete(time.time())) == 3
    assert survey.plan.step(VACUUM).numbers["deletable_files"] == 3


def test_a_flow_that_was_released_holds_nothing_back(look, engine: Engine):
    append_and_compact(SOURCE)
    grow_older(SOURCE, 5 * HOUR)
    planned_checkpoint(READER, planned=[2], committed=1)
    with database.transaction(engine) as connection:
        vacuum_holds.release(connection, READER, "ann", "it is rebuilt on Monday")
    [survey] = look(source(time_travel_hours=1), reader())
    assert survey.retention_seconds == 2 * HOUR
    assert len(survey.would_delete(time.time())) == 3


def test_a_reader_that_registered_itself_holds_vacuum_back_until_it_lets_go(look, engine: Engine):
    append_and_compact(SOURCE)
    grow_older(SOURCE, 5 * HOUR)
    vacuum_holds.register(engine, "report", SOURCE, version=1, hours=48, requester="ann")
    [survey] = look(source(time_travel_hours=1))
    assert (survey.held.name, survey.held.version, survey.retention_seconds) == ("report", 1, 7 * HOUR)
    vacuum_holds.unregister(engine, "report", SOURCE, "ann")
    [survey] = look(source(time_travel_hours=1))
    assert survey.retention_seconds == 2 * HOUR


def test_the_version_that_a_view_declares_is_held_for_as_long_as_its_file_says_so(look):
    append_and_compact(SOURCE)
    grow_older(SOURCE, 5 * HOUR)
    view = Table(
        name="gold.compared",
        source={"now": Delta(SOURCE), "then": Delta(SOURCE, version_as_of=1)},
        comment="",
        schema="number BIGINT",
        transform="SELECT * FROM now EXCEPT SELECT * FROM then",
        write=Replace(),
    )
    [survey] = look(source(time_travel_hours=1), view)
    assert (survey.held.version, survey.log_needed_from, survey.retention_seconds) == (1, 1, 7 * HOUR)
    assert survey.lines()[-1].endswith("the oldest version needed is 1, by gold.compared, which declares this version")
    assert survey.held.is_declared, "nobody is notified of what a table file wants"
    is_gone, is_to_come = (
        replace(view, source=Delta(SOURCE, timestamp_as_of=moment), transform=None)
        for moment in ("2001-01-01T00:00:00Z", "2101-01-01T00:00:00Z")
    )
    for other in (is_gone, is_to_come, replace(view, source=Delta(SOURCE), transform=None)):
        [survey] = look(source(time_travel_hours=1), other)
        assert survey.retention_seconds == 2 * HOUR


def test_the_log_is_kept_from_the_oldest_version_that_somebody_needs(look, engine: Engine):
    append(SOURCE, times=6)
    grow_older(SOURCE, 5 * HOUR)
    [survey] = look(source(time_travel_hours=1))
    assert survey.log_needed_from == 5
    vacuum_holds.register(engine, "report", SOURCE, version=3, hours=48, requester="ann")
    [survey] = look(source(time_travel_hours=1))
    assert survey.log_needed_from == 3


def test_the_log_keeps_the_commit_of_a_backfill_until_it_is_finished(look, engine: Engine):
    append(SOURCE, times=3)
    backfill = backfills.begin(engine, SOURCE, Slice(), "ada")
    delta_log.append(locations.table_path(SOURCE), user_metadata=json.dumps({"backfill": {"key": backfill.key}}))
    append(SOURCE, times=3)
    grow_older(SOURCE, CLOCK_SKEW_SECONDS / 2)
    maintained = source(time_travel_hours=0.1)
    [survey] = look(maintained)
    assert survey.log_needed_from == 3
    backfills.finish(engine, backfill, 3, (0, 3), [], {})
    [survey] = look(maintained)
    assert survey.log_needed_from == 6


def test_small_files_that_have_waited_for_a_day_are_worth_a_window(engine: Engine):
    append(SOURCE, times=MANY)
    plan = plan_of(engine, source())
    assert not plan.is_worth_it
    assert plan.store(engine, "ada") is None
    grow_older(SOURCE, DAY)
    plan = plan_of(engine, source())
    [survey] = plan.surveys
    assert plan.is_worth_it
    assert plan.why.startswith(f"optimize {SOURCE}: 20 of 20 files are smaller than 64 MB")
    assert survey.plan.step(OPTIMIZE) == survey.compaction
    number = plan.store(engine, "ada")
    planned, skipped = store.newest(engine, Window, SOURCE)
    assert (planned.number, planned.state, planned.reason, skipped.state) == (number, "planned", plan.why, "skipped")
    # Whoever asks a driver for it does not survey the table once more.
    assert planned.bytes_rewritten == survey.compaction.numbers["bytes_rewritten"] > 0


def test_small_files_wait_for_a_day_since_the_last_compaction(look):
    append(SOURCE, times=MANY)
    [survey] = look(source())
    assert not survey.compaction.is_worth_it
    commit(locations.table_path(SOURCE), MANY, commit_info(time.time() - DAY, operation="OPTIMIZE"))
    [survey] = look(source())
    assert survey.compaction.is_worth_it


def test_a_table_that_is_upserted_all_the_time_is_left_to_its_stream_by_the_plan_of_its_windows(engine: Engine):
    append(READER, times=MANY)
    grow_older(READER, DAY)
    plan = plan_of(engine, reader(), source())
    [survey] = plan.surveys
    assert survey.compaction.is_worth_it
    step = survey.plan.step(OPTIMIZE)
    assert not step.is_worth_it
    assert step.why.startswith(
        "a stream upserts it all the time, so that stream compacts it every 200 batches; 20 of 20 files are smaller"
    )
    assert [step.kind for step in survey.plan.steps] == [MERGE, OPTIMIZE, VACUUM, CLEAN_LOG]
    assert plan.why.startswith("nothing is worth it: ")
    assert survey.lines()[4].startswith(f"{READER}: compacted inline: a stream upserts it all the time")


@pytest.mark.parametrize(("merged_up_to", "waiting"), [(None, 5), (2, 2), (4, 0)])
def test_a_table_that_is_merged_in_windows_waits_for_what_its_source_has_gathered(
    merged_up_to, waiting: int, engine: Engine
):
    append(SOURCE, times=5)
    append(READER)
    if merged_up_to is not None:
        planned_checkpoint(READER, planned=[merged_up_to], committed=1)
    plan = plan_of(engine, reader(in_windows=True), source())
    step = plan.surveys[0].plan.step(MERGE)
    assert step.numbers == {"unread_versions": waiting}
    assert step.is_worth_it is plan.is_worth_it is (waiting > 0)


def test_nothing_waits_to_be_merged_where_a_stream_does_it(look):
    append(SOURCE, times=5)
    append(READER)
    [survey] = look(reader(), source())
    assert survey.plan.step(MERGE).numbers == {"unread_versions": 0}


def test_a_shape_is_the_newest_version_in_numbers():
    append(SOURCE, times=2)
    path = locations.table_path(SOURCE)
    write_deltalake(str(path), pyarrow.table({"number": range(100_000)}), mode="append")
    small, large = sorted({file.bytes for file in DeltaLog(path).state.live})
    shape = table_survey.shape(DeltaLog(path), good_bytes=large)
    assert (shape.version, shape.files, shape.bytes) == (2, 3, 2 * small + large)
    assert (shape.small_files, shape.rows) == (2, 100_002)
    assert shape.small_ratio == pytest.approx(2 / 3)


def test_rows_that_somebody_did_not_count_are_not_guessed():
    append(SOURCE, times=2)
    path = locations.table_path(SOURCE)
    newest = path / "_delta_log" / f"{1:020}.json"
    actions = [json.loads(line) for line in newest.read_text().splitlines()]
    for action in actions:
        action.get("add", {}).pop("stats", None)
    newest.write_text("\n".join(map(json.dumps, actions)))
    assert table_survey.shape(DeltaLog(path), good_bytes=1).rows is None
