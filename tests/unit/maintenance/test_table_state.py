"""What is to be done to a table now: on real tables, made older where time matters, and checkpoints beside them."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pytest
from deltalake import DeltaTable, write_deltalake
from sqlalchemy import Engine

from include.catalog import Catalog
from include.control import vacuum_holds
from include.control.store import database
from include.maintenance import table_state
from include.maintenance.plan import CLEAN_LOG, MERGE, OPTIMIZE, VACUUM
from include.maintenance.table_state import TableSurvey
from include.readers.delta_log import DeltaLog
from include.settings import settings
from include.spec import Bucket, Delta, Expect, Kafka, Maintenance, Table, Upsert
from tests.support.delta_log import commit, commit_info
from tests.support.lake import planned_checkpoint

HOUR, DAY, WEEK = 3_600, 86_400, 604_800
SOURCE, READER = "silver.readings", "gold.by_minute"
# So many that the last one is not rewritten for the sake of a few others.
MANY = 20


def source(**maintain: float) -> Table:
    return Table(name=SOURCE, source=Kafka("events"), comment="", maintain=Maintenance(**maintain))


def reader(in_windows: bool = False) -> Table:
    write = Upsert(("minute",), Bucket("minute", of="timestamp", unit="minute"), in_windows)
    return Table(name=READER, source=Delta(SOURCE), comment="", schema="minute TIMESTAMP", write=write)


pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = database.connect(f"sqlite:///{tmp_path / 'control.db'}")
    yield made
    made.dispose()


@pytest.fixture
def look(engine: Engine):
    def surveys(table: Table, *others: Table) -> list[TableSurvey]:
        return table_state.survey(engine, table, Catalog({one.name: one for one in (table, *others)}))

    return surveys


def append(name: str, times: int = 1) -> None:
    for number in range(times):
        write_deltalake(settings().table_path(name), pyarrow.table({"number": [number]}), mode="append")


def compacted(name: str) -> None:
    """Versions 0 to 4: three files, put together in version 3, and one more."""
    append(name, times=3)
    DeltaTable(settings().table_path(name)).optimize.compact()
    append(name)


def grow_older(name: str, seconds: float) -> None:
    """As if all that ever happened to the table had happened earlier."""

    def earlier(action: dict) -> dict:
        said = next(iter(action.values()))
        for key in {"timestamp", "deletionTimestamp", "modificationTime"} & said.keys():
            said[key] = int(said[key] - seconds * 1_000)
        return action

    path = settings().table_path(name)
    for file in (path / "_delta_log").glob("*.json"):
        actions = [earlier(json.loads(line)) for line in file.read_text().splitlines()]
        file.write_text("\n".join(map(json.dumps, actions)))
    for file in path.glob("*.parquet"):
        then = file.stat().st_mtime - seconds
        os.utime(file, (then, then))


def test_a_table_that_nobody_stored_has_nothing_to_be_done(look, engine: Engine):
    found = look(source())
    assert found == []
    assert table_state.why(found) == "the table is not stored yet"
    assert not table_state.is_worth_it(engine, source(), found)


def test_the_first_window_of_a_table_that_is_merged_in_windows_makes_it(look, engine: Engine):
    assert table_state.is_worth_it(engine, reader(in_windows=True), look(reader(in_windows=True)))


def test_the_quarantine_has_a_plan_of_its_own_beside_its_table(look):
    table = Table(
        name=SOURCE, source=Delta("bronze.a"), comment="", schema="number INT", expect=(Expect("known", "TRUE"),)
    )
    append(table.name)
    assert [found.name for found in look(table)] == [SOURCE]
    append(table.quarantine, times=2)
    found = look(table)
    assert [(one.name, one.shape.files) for one in found] == [(SOURCE, 1), ("quarantine.silver_readings", 2)]
    assert {line.partition(":")[0] for one in found for line in one.lines()} == {SOURCE, "quarantine.silver_readings"}


def test_vacuum_waits_for_a_flow_that_stopped_long_ago_by_whole_hours(look):
    compacted(SOURCE)
    grow_older(SOURCE, 5 * HOUR)
    planned_checkpoint(READER, planned=[2], committed=1)
    [found] = look(source(time_travel_hours=1), reader())
    assert (found.held.name, found.held.version) == (READER, 2)
    assert found.retention_seconds == 7 * HOUR
    assert found.would_delete(time.time()) == []
    assert found.plan.step(VACUUM).numbers["deletable_files"] == 0
    assert found.lines()[-1] == (
        f"{SOURCE}: VACUUM keeps what was deleted in the last 25,200 s; the oldest version needed is 2, by {READER}"
    )


def test_the_promise_is_kept_where_it_reaches_further_back_than_anybody_else(look):
    compacted(SOURCE)
    grow_older(SOURCE, 5 * HOUR)
    planned_checkpoint(READER, planned=[2], committed=1)
    [found] = look(source(), reader())
    assert found.retention_seconds == WEEK + HOUR


def test_what_is_held_is_still_held_when_vacuum_runs_a_while_after_the_look(look, engine: Engine):
    compacted(SOURCE)
    grow_older(SOURCE, 1.5 * HOUR)
    vacuum_holds.register(engine, "report", SOURCE, version=1, hours=48)
    [found] = look(source(time_travel_hours=1))
    assert found.would_delete(time.time() + 0.9 * HOUR) == []


def test_a_flow_that_has_read_on_holds_nothing_back(look):
    compacted(SOURCE)
    grow_older(SOURCE, 5 * HOUR)
    planned_checkpoint(READER, planned=[4], committed=1)
    [found] = look(source(time_travel_hours=1), reader())
    assert found.retention_seconds == 2 * HOUR
    assert len(found.would_delete(time.time())) == 3
    assert found.plan.step(VACUUM).numbers["deletable_files"] == 3


def test_a_flow_that_was_released_holds_nothing_back(look, engine: Engine):
    compacted(SOURCE)
    grow_older(SOURCE, 5 * HOUR)
    planned_checkpoint(READER, planned=[2], committed=1)
    with database.transaction(engine) as connection:
        vacuum_holds.release(connection, READER, "ann", "it is rebuilt on Monday")
    [found] = look(source(time_travel_hours=1), reader())
    assert found.retention_seconds == 2 * HOUR
    assert len(found.would_delete(time.time())) == 3


def test_a_reader_that_registered_itself_holds_vacuum_back_until_it_lets_go(look, engine: Engine):
    compacted(SOURCE)
    grow_older(SOURCE, 5 * HOUR)
    vacuum_holds.register(engine, "report", SOURCE, version=1, hours=48)
    [found] = look(source(time_travel_hours=1))
    assert (found.held.name, found.held.version, found.retention_seconds) == ("report", 1, 7 * HOUR)
    vacuum_holds.unregister(engine, "report", SOURCE)
    [found] = look(source(time_travel_hours=1))
    assert found.retention_seconds == 2 * HOUR


def test_the_log_is_kept_from_the_oldest_version_that_somebody_needs(look, engine: Engine):
    append(SOURCE, times=6)
    grow_older(SOURCE, 5 * HOUR)
    [found] = look(source(time_travel_hours=1))
    assert found.log_needed_from == 5
    vacuum_holds.register(engine, "report", SOURCE, version=3, hours=48)
    [found] = look(source(time_travel_hours=1))
    assert found.log_needed_from == 3


def test_small_files_that_have_waited_for_a_day_are_worth_a_window(look, engine: Engine):
    append(SOURCE, times=MANY)
    [found] = look(source())
    assert not table_state.is_worth_it(engine, source(), [found])
    grow_older(SOURCE, DAY)
    [found] = look(source())
    assert table_state.is_worth_it(engine, source(), [found])
    assert table_state.why([found]).startswith(f"optimize {SOURCE}: 20 of 20 files are smaller than 64 MB")
    assert found.plan.step(OPTIMIZE) == found.compaction


def test_small_files_wait_for_a_day_since_the_last_compaction(look):
    append(SOURCE, times=MANY)
    [found] = look(source())
    assert not found.compaction.is_worth_it
    commit(settings().table_path(SOURCE), MANY, commit_info(time.time() - DAY, operation="OPTIMIZE"))
    [found] = look(source())
    assert found.compaction.is_worth_it


def test_a_table_that_is_upserted_all_the_time_is_left_to_its_stream_by_the_plan_of_its_windows(look):
    append(READER, times=MANY)
    grow_older(READER, DAY)
    [found] = look(reader(), source())
    assert found.compaction.is_worth_it
    step = found.plan.step(OPTIMIZE)
    assert not step.is_worth_it
    assert step.why.startswith(
        "a stream upserts it all the time, so that stream compacts it every 200 batches; 20 of 20 files are smaller"
    )
    assert [step.kind for step in found.plan.steps] == [MERGE, OPTIMIZE, VACUUM, CLEAN_LOG]
    assert table_state.why([found]).startswith("nothing is worth it: ")
    assert found.lines()[4].startswith(f"{READER}: compacted inline: a stream upserts it all the time")


@pytest.mark.parametrize(("merged_up_to", "waiting"), [(None, 5), (2, 2), (4, 0)])
def test_a_table_that_is_merged_in_windows_waits_for_what_its_source_has_gathered(
    look, merged_up_to, waiting: int, engine: Engine
):
    append(SOURCE, times=5)
    append(READER)
    if merged_up_to is not None:
        planned_checkpoint(READER, planned=[merged_up_to], committed=1)
    table = reader(in_windows=True)
    [found] = look(table, source())
    step = found.plan.step(MERGE)
    assert step.numbers == {"unread_versions": waiting}
    assert step.is_worth_it is table_state.is_worth_it(engine, table, [found]) is (waiting > 0)


def test_nothing_waits_to_be_merged_where_a_stream_does_it(look):
    append(SOURCE, times=5)
    append(READER)
    [found] = look(reader(), source())
    assert found.plan.step(MERGE).numbers == {"unread_versions": 0}


def test_a_shape_is_the_newest_version_in_numbers():
    append(SOURCE, times=2)
    path = settings().table_path(SOURCE)
    write_deltalake(path, pyarrow.table({"number": range(100_000)}), mode="append")
    small, large = sorted({file.bytes for file in DeltaLog(path).state.live})
    shape = table_state.shape(DeltaLog(path), good_bytes=large)
    assert (shape.version, shape.files, shape.bytes) == (2, 3, 2 * small + large)
    assert (shape.small_files, shape.rows) == (2, 100_002)
    assert shape.small_ratio == pytest.approx(2 / 3)


def test_rows_that_somebody_did_not_count_are_not_guessed():
    append(SOURCE, times=2)
    path = settings().table_path(SOURCE)
    newest = path / "_delta_log" / f"{1:020}.json"
    actions = [json.loads(line) for line in newest.read_text().splitlines()]
    for action in actions:
        action.get("add", {}).pop("stats", None)
    newest.write_text("\n".join(map(json.dumps, actions)))
    assert table_state.shape(DeltaLog(path), good_bytes=1).rows is None
