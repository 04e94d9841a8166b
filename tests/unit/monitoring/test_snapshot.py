"""The supervisor's snapshot: what it holds, what survives a damaged part, and its history of seven days."""

import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, insert, select

from include.catalog import Catalog
from include.control import cleanup
from include.control.flows.decide import Decision, State
from include.control.store import database
from include.control.store.schema import samples, snapshots
from include.lake import locations
from include.monitoring import snapshot, take_snapshot
from include.monitoring.query_progress import Journal
from include.monitoring.snapshot import FlowSnapshot, Snapshot, TableDetails, TableSnapshot
from include.settings import settings
from include.spec import Delta, Expect, Flow, Kafka
from tests.support import lake
from tests.support.lake import checkpoint, delta_offset
from tests.support.progress_reports import line, report

BRONZE = Flow(name="bronze.events", source=Kafka("events"), comment="one event", owner="team one")
SILVER = Flow(
    name="silver.readings",
    source=Delta("bronze.events"),
    schema="number BIGINT COMMENT 'it\\'s, counted', text STRING",
    comment="",
    fresh_minutes=5,
    expect=(Expect("known", "number IS NOT NULL"),),
)
TABLES = Catalog({BRONZE.name: BRONZE, SILVER.name: SILVER})


@pytest.fixture
def engine(home, own_settings, silent_port: int) -> Engine:
    own_settings(SLUICE_KAFKA=f"127.0.0.1:{silent_port}", SLUICE_CONTROL_URL=f"sqlite:///{home / 'control.db'}")
    return database.connect(settings().control_url)


@pytest.fixture
def lagging() -> None:
    """Bronze has three versions, of which silver has read two, and plans the third."""
    now_seconds = time.time()
    for count in (10, 20, 40):
        lake.rows(BRONZE.name, now_seconds - 400, count)
    lake.rows(SILVER.name, now_seconds - 900, 9, flow=SILVER.flow, generation=1, source_to=delta_offset(1))
    checkpoint(SILVER.flow, delta_offset(1), delta_offset(2), is_planned=True)


def take(engine: Engine, tables: Catalog = TABLES) -> Snapshot:
    return take_snapshot.take(engine, tables, timeout_seconds=0.1)


def flows(taken: Snapshot) -> dict[str, FlowSnapshot]:
    return {flow.flow: flow for flow in taken.flows}


def tables(taken: Snapshot) -> dict[str, TableSnapshot]:
    return {table.table: table for table in taken.tables}


def test_without_a_supervisor_there_is_no_snapshot_and_no_history(engine: Engine):
    assert snapshot.newest(engine) is None
    assert snapshot.details(engine, SILVER.name) is None
    assert snapshot.history(engine, SILVER.flow, 3600) == []


def test_what_was_taken_is_read_back(engine: Engine, lagging: None):
    taken = take(engine)
    assert snapshot.newest(engine) == taken
    silver = flows(taken)[SILVER.flow]
    assert (silver.rows, silver.versions, silver.in_flight, silver.is_fresh) == (60, 2, 1, False)
    assert flows(taken)[BRONZE.flow].unknown
    assert (tables(taken)[BRONZE.name].rows, tables(taken)[BRONZE.name].owner) == (70, "team one")
    assert [(edge.source_kind, edge.target) for edge in taken.edges] == [("topic", BRONZE.name), ("table", SILVER.name)]
    details = snapshot.details(engine, SILVER.name)
    assert details
    assert [column["comment"] for column in details.columns] == ["it's, counted", ""]
    assert details.held_by
    assert [(version["version"], version["flow"]) for version in details.versions] == [(0, SILVER.flow)]


def test_each_snapshot_adds_a_sample_of_each_flow(engine: Engine, lagging: None):
    for _ in range(2):
        take(engine)
    history = snapshot.history(engine, SILVER.flow, 3600)
    assert [sample.behind for sample in history] == [2, 2]
    assert history[0].lag_seconds == pytest.approx(400, abs=60)


def test_a_verdict_is_stored_at_once_and_what_was_measured_stays(engine: Engine, lagging: None):
    before = take(engine)
    backs_off = {SILVER.flow: Decision(State.BACKING_OFF, "its driver ended", "none", cause="driver main")}
    assert take_snapshot.renew_verdicts(engine, TABLES, backs_off)
    after = snapshot.newest(engine)
    assert after and after.at > before.at
    silver = flows(after)[SILVER.flow]
    assert silver == replace(
        flows(before)[SILVER.flow],
        state=State.BACKING_OFF,
        reason="its driver ended",
        next_step="none",
        action="restart",
    )
    assert after.tables == before.tables
    assert len(snapshot.history(engine, SILVER.flow, 3600)) == 1
    assert snapshot.details(engine, SILVER.name)


def test_an_unchanged_verdict_leaves_the_snapshot_alone_whatever_its_reason_counts(engine: Engine, lagging: None):
    first, second = (
        {SILVER.flow: Decision(State.STARTING, f"its query has been starting for {seconds} s")} for seconds in (4, 64)
    )
    taken = take_snapshot.take(engine, TABLES, first, timeout_seconds=0.1)
    assert not take_snapshot.renew_verdicts(engine, TABLES, second)
    assert snapshot.newest(engine) == taken


def test_a_snapshot_that_is_old_is_not_made_to_look_new(engine: Engine, lagging: None):
    old = replace(take(engine), at=time.time() - 2 * snapshot.OLD_SECONDS)
    snapshot.replace_newest(engine, old)
    assert not take_snapshot.renew_verdicts(engine, TABLES, {SILVER.flow: Decision(State.BROKEN, "why")})
    assert snapshot.newest(engine) == old


def test_rates_are_means_over_the_batches_of_late(engine: Engine, lagging: None):
    def batch(number: int, seconds_ago: float, **counts: float) -> str:
        start = datetime.now(UTC) - timedelta(seconds=seconds_ago + number)
        progress = report(number, start, numInputRows=0, inputRowsPerSecond=0.0, processedRowsPerSecond=0.0)
        return line(progress, flow=SILVER.flow, **counts)

    journal = Journal()
    old = batch(4, 3600, read=1_000_000, written=1, seconds=1.0)
    journal.write([old, batch(5, 40, read=300, written=30, seconds=10.0)])
    # Its segment is still open.
    journal.write([batch(6, 20, read=100, written=10, seconds=30.0)])
    silver = flows(take(engine))[SILVER.flow]
    journal.finish()
    assert (silver.rows_in_per_second, silver.rows_out_per_second) == (10.0, 1.0)
    assert (silver.batch, silver.rows_in, silver.rows_out, silver.batch_ms) == (6, 100, 10, 1429)
    assert silver.phases_ms["add_batch_ms"] == 1191
    assert flows(snapshot.newest(engine) or Snapshot(0.0))[BRONZE.flow].rows_in_per_second == 0
    [sample] = snapshot.history(engine, SILVER.flow, 3600)
    assert (sample.rows_in_per_second, sample.batch_ms, sample.add_batch_ms) == (10.0, 1429, 1191)


def test_samples_are_kept_for_seven_days(engine: Engine):
    with database.transaction(engine) as connection:
        now_seconds = database.now(connection)
        ages = (8 * cleanup.DAY_SECONDS, 6 * cleanup.DAY_SECONDS, 0.0)
        connection.execute(insert(samples), [{"flow": SILVER.flow, "at": now_seconds - age} for age in ages])
    assert cleanup.forget(engine) == {"sample": 1}
    assert len(snapshot.history(engine, SILVER.flow, 7 * cleanup.DAY_SECONDS)) == 2


def test_a_damaged_log_leaves_the_other_tables_known(engine: Engine, lagging: None):
    (locations.table_path(SILVER.name) / "_delta_log" / f"{0:020}.json").write_text("{")
    found = tables(take(engine))
    assert "is missing or damaged" in found[SILVER.name].unknown
    assert found[SILVER.name].rows is None
    assert found[BRONZE.name].rows == 70


def test_details_of_a_table_that_is_no_longer_declared_go(engine: Engine, lagging: None):
    take(engine)
    take(engine, Catalog({BRONZE.name: BRONZE}))
    assert snapshot.details(engine, SILVER.name) is None
    assert snapshot.details(engine, BRONZE.name)


def test_details_are_written_again_only_after_a_commit(engine: Engine, lagging: None):
    take(engine)
    first = snapshot.details(engine, BRONZE.name)
    assert first
    take(engine)
    assert snapshot.details(engine, BRONZE.name) == first
    lake.rows(BRONZE.name, time.time(), 5)
    taken = take(engine)
    second = snapshot.details(engine, BRONZE.name)
    assert second
    assert (len(second.versions), tables(taken)[BRONZE.name].rows) == (len(first.versions) + 1, 75)


def test_a_snapshot_of_another_build_is_read_as_far_as_it_is_known(engine: Engine):
    snapshot.store(engine, Snapshot(1.0, flows=(FlowSnapshot("a.b", "a.b"),)))
    with database.transaction(engine) as connection:
        document = json.loads(connection.execute(select(snapshots.c.document)).scalar_one())
        document["flows"][0] |= {"of_tomorrow": 1}
        del document["flows"][0]["restarts"], document["jobs"]
        connection.execute(snapshots.update().values(document=json.dumps(document)))
    assert snapshot.newest(engine) == Snapshot(1.0, flows=(FlowSnapshot("a.b", "a.b"),))


def test_a_snapshot_is_old_once_its_supervisor_is_late():
    taken = Snapshot(1_000.0)
    assert not taken.is_old(1_000.0 + snapshot.OLD_SECONDS)
    assert taken.is_old(1_001.0 + snapshot.OLD_SECONDS)


def test_details_are_stored_with_the_snapshot_that_lists_their_table(engine: Engine):
    listed = TableSnapshot("a.b")
    snapshot.store(engine, Snapshot(1.0, tables=(listed,)), [TableDetails("a.b", 1.0)])
    snapshot.store(engine, replace(Snapshot(2.0), tables=(listed,)))
    assert snapshot.details(engine, "a.b") == TableDetails("a.b", 1.0)
