"""`python -m include.ledger status`, for a handmade lake, with and without a control database."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable
from sqlalchemy import Engine

from include.catalog import Catalog
from include.cli import executors as cli
from include.cli.status import text as status_text
from include.control import commands
from include.control.commands import Action, Command
from include.control.flows import orders, sizing
from include.control.flows.observed_flow import Failure
from include.control.flows.scale import Load
from include.control.jobs import store
from include.control.jobs.store import StoredJob
from include.control.leases import lease
from include.control.store import database
from include.control.store.job_id import JobKind
from include.flows import refreshes
from include.kafka.retention import RetentionClock
from include.lake import locations
from include.local.status import summary
from include.monitoring import status
from include.monitoring.status import FlowStatus
from include.settings import settings
from include.spec import Delta, Flow, Kafka, Replace, Upsert
from tests.conftest import ROOT
from tests.support import lake
from tests.support.lake import checkpoint, delta_offset

BRONZE = Flow(name="bronze.events", source=Kafka("events"), comment="")
SILVER = Flow(name="silver.readings", source=Delta("bronze.events"), comment="", fresh_minutes=5)
MERGED = Flow(name="gold.sums", source=Delta("silver.readings"), comment="", write=Upsert(("number",), in_windows=True))
TABLES = Catalog({table.name: table for table in (BRONZE, SILVER, MERGED)})


@pytest.fixture(autouse=True)
def silent_broker(home, own_settings, silent_port):
    own_settings(SLUICE_KAFKA=f"127.0.0.1:{silent_port}", SLUICE_CONTROL_URL=f"sqlite:///{home / 'control.db'}")


@pytest.fixture
def engine(home: Path) -> Engine:
    return database.connect(settings().control_url)


def flow_statuses() -> dict[str, FlowStatus]:
    return {flow_status.flow: flow_status for flow_status in status.statuses(TABLES, timeout_seconds=0.5)}


def test_before_anything_was_started_every_flow_says_so():
    statuses = flow_statuses()
    assert [flow_status.lag.words for flow_status in statuses.values()] == [
        "unknown: no broker",
        f"{locations.table_path('bronze.events')} holds no Delta log: start the flow that writes the table first",
        f"{locations.table_path('silver.readings')} holds no Delta log: start the flow that writes the table first",
    ]
    assert [flow_status.state for flow_status in statuses.values()] == ["STARTING", "STARTING", "IN WINDOWS"]


def test_a_flow_shows_what_is_wanted_its_state_its_lag_its_promise_and_its_batch_in_flight(engine, holder):
    current_time = time.time()
    lake.rows("bronze.events", current_time - 900, 100)
    lake.rows("bronze.events", current_time - 400, 2_000)
    lake.rows("silver.readings", current_time - 900, 1, flow=SILVER.flow, generation=1, source_to=delta_offset(1))
    checkpoint(SILVER.flow, delta_offset(1), delta_offset(2), is_planned=True)
    lease.acquire(engine, [SILVER.flow], holder("main"), 60)
    commands.execute(engine, Command(Action.STOP, (BRONZE.flow,), "ann", "a test"))
    orders.begin(engine, [SILVER.flow], by_hand=True)
    orders.report_progress(engine, [SILVER.flow])
    flow_status = flow_statuses()[SILVER.flow]
    assert (flow_status.wanted, flow_status.state, flow_status.in_flight) == ("running", "HEALTHY", 1)
    assert (flow_status.lag.rows, flow_status.trend.verdict) == (2_000, "falling behind")
    # The broker is away, but the unread rows in bronze alone are older than promised.
    assert (flow_status.freshness.is_kept, flow_status.freshness.by) == (False, SILVER.flow)
    assert (flow_statuses()[BRONZE.flow].wanted, flow_statuses()[BRONZE.flow].state) == ("stopped", "STOPPED")
    lines = status_text(flow_statuses().values()).splitlines()
    assert lines[0].split() == ["flow", "state", "behind", "by", "oldest", "unread", "promise", "trend"]
    assert lines[1].split("  ")[0] == "bronze.events"
    assert "1 versions, 2,000 rows, 0.0 MB" in lines[2]
    assert "7 min" in lines[2]
    assert "silver.readings: batch 1 is planned and not committed: a restart replays it" in lines
    assert sum("no Kafka broker answers" in line for line in lines) == 1


def test_a_flow_whose_driver_is_too_busy_for_its_interval_says_how_often_it_begins_a_batch(engine, holder):
    lease.acquire(engine, [SILVER.flow], holder("main"), 60)
    orders.begin(engine, [SILVER.flow], by_hand=True)
    note = "silver.readings: its driver is busy, so that its batches begin every 8.5 s"
    for seconds, has_note in ((SILVER.interval_seconds, False), (8.5, True), (SILVER.interval_seconds, False)):
        orders.report_progress(engine, [SILVER.flow], {SILVER.flow: seconds})
        assert (note in status_text(flow_statuses().values()).splitlines()) == has_note
    assert flow_statuses()[SILVER.flow].as_json()["longer_interval_seconds"] is None


@pytest.mark.parametrize(
    ("left_hours", "retention_hours", "has_note"),
    [(168, 168, False), (84, 168, True), (0, 168, True), (25, None, False), (24, None, True), (None, 168, False)],
)
def test_a_note_tells_of_records_that_kafka_deletes_soon_and_not_of_all_that_are_unread(
    left_hours, retention_hours, has_note
):
    left_seconds, retention_seconds = (
        hours if hours is None else 3600 * hours for hours in (left_hours, retention_hours)
    )
    clock = RetentionClock("events", 0, 1, 0, 9, 8, left_seconds, retention_seconds, "")
    flow_status = flow_statuses()[BRONZE.flow]
    flow_status = replace(flow_status, lag=replace(flow_status.lag, unknown=None, is_away=False, expires=clock))
    note = "bronze.events: Kafka deletes unread records of topic 'events', partition 0 in "
    assert any(line.startswith(note) for line in status_text([flow_status]).splitlines()) == has_note


def test_a_flow_that_failed_says_why(engine):
    orders.begin(engine, [SILVER.flow], by_hand=True)
    orders.fail(engine, [SILVER.flow], Failure("silver.readings: the disk is full: make room", "X", True))
    lines = status_text(flow_statuses().values()).splitlines()
    assert any(line.startswith("silver.readings: BROKEN: ") and "the disk is full" in line for line in lines)


def test_a_view_whose_newest_refresh_failed_says_why_until_another_one_has_done_it(engine):
    first, second = (
        Flow(name=f"gold.{name}", source=Delta("silver.readings"), comment="", write=Replace())
        for name in ("first", "second")
    )
    tables = Catalog({table.name: table for table in (*TABLES.tables.values(), first, second)})

    def begin(who: str) -> StoredJob:
        views = {"views": [first.name, second.name]}
        job = store.begin(engine, JobKind.REFRESH, first.name, who, parameters=views)
        return store.get(engine, StoredJob, job.number, job.kind)

    def reasons() -> list[str]:
        states = {of.table: of for of in status.statuses(tables, timeout_seconds=0.5)}
        assert {states[view.name].state for view in (first, second)} == {"VIEW"}
        return [states[view.name].reason for view in (first, second)]

    monday = begin("monday")
    assert reasons() == [refreshes.staleness_words(view) for view in (first, second)]
    store.record_failure(engine, monday, "gold.second: run 'monday' fails with rows of silver.readings")
    # The run has done the first view before it failed.
    tally = {"read": 1, "kept": 1, "quarantined": 0, "dropped": 0, "broke": {}}
    reads = {"silver.readings": 3}
    lake.rows(first.name, time.time(), 1, refresh="monday", read=reads, run_reads=reads, rows=tally)
    assert reasons() == ["", "its last refresh failed: gold.second: run 'monday' fails with rows of silver.readings"]
    store.finish(engine, begin("tuesday"), "gold.second: replaced: 5 rows")
    assert reasons() == [refreshes.staleness_words(view) for view in (first, second)]


def test_looking_starts_and_intends_nothing(engine):
    flow_statuses()
    with database.transaction(engine) as connection:
        rows = orders.lock(connection, [SILVER.flow])
    assert rows[SILVER.flow].intended_at is None
    assert rows[SILVER.flow].attempts == 0


def test_without_a_control_database_the_lags_are_told_all_the_same(monkeypatch, home):
    monkeypatch.setenv("SLUICE_CONTROL_URL", f"sqlite:///{home}/no/such/folder/control.db")
    settings.cache_clear()
    lake.rows("bronze.events", time.time(), 7)
    statuses = flow_statuses()
    assert (statuses[SILVER.flow].wanted, statuses[SILVER.flow].state) == (None, None)
    assert statuses[SILVER.flow].lag.rows == 7
    assert "SLUICE_CONTROL_URL is sqlite:" in status_text(statuses.values())


def test_the_command_prints_every_flow_for_people_and_for_programs(home):
    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "include.ledger", "status", *arguments]
        result = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=60)
        assert result.returncode == 0, result.stderr
        return result.stdout

    lake.rows("bronze.tracker_events", time.time() - 120, 7)
    assert "silver.tracker_readings" in run()
    statuses = {flow_status["flow"]: flow_status for flow_status in json.loads(run("--json"))}
    readings = statuses["silver.tracker_readings"]
    assert readings["lag"]["rows"] == 7
    assert readings["lag"]["is_up_to_date"] is False
    assert readings["trend"]["verdict"] == "unknown"
    assert {"wanted", "state", "reason", "freshness", "in_flight"} <= readings.keys()
    assert statuses["bronze.tracker_events"]["lag"]["is_away"] is True


def test_the_summary_states_below_its_lines_why_a_lag_is_unknown(monkeypatch):
    monkeypatch.setattr("include.catalog.load", lambda: TABLES)
    lines = summary().splitlines()
    reason = f"{locations.table_path('bronze.events')} holds no Delta log: start the flow that writes the table first"
    assert lines.index(reason) > [line.split()[0] for line in lines].index("gold.sums")
    assert [line.split()[:3] for line in lines if line.startswith("silver.readings")] == [
        ["silver.readings", "not", "yet"]
    ]
    assert all("holds no Delta log" not in line for line in lines if line.split()[0] in TABLES.tables)


def test_the_summary_tells_the_age_of_a_table_whose_log_was_cleaned(monkeypatch):
    monkeypatch.setattr("include.catalog.load", lambda: TABLES)
    lake.rows("bronze.events", time.time() - 100)
    lake.rows("silver.readings", time.time() - 100)
    lake.rows("silver.readings", time.time() - 50)
    log = locations.table_path("silver.readings") / "_delta_log"
    table = DeltaTable(str(locations.table_path("silver.readings")))
    table.create_checkpoint()
    for file in sorted(log.glob("*.json")):
        file.unlink()
    lines = {line.split()[0]: line for line in summary().splitlines() if line}
    assert lines["bronze.events"].endswith(" s ago")
    assert lines["silver.readings"].endswith("?")


def test_a_driver_whose_executors_are_declared_says_how_many_it_is_to_have_and_why(engine: Engine, capsys):
    assert flow_statuses()[BRONZE.flow].executors is None
    sizing.declare(engine, {"main": (2, 6)})
    assert "driver 'main' is to have 2 executors" in status_text(flow_statuses().values())
    sizing.settle(engine, "main", (2, 6), 600.0, (Load(BRONZE.flow, None, None, None, ()),))
    sizing.report(engine, "main", running=1, cores=2)
    lines = status_text(flow_statuses().values()).splitlines()
    note = (
        "driver 'main' is to have 2 executors, and has 1: too few batches or no measure of what is unread, so it stays"
    )
    assert lines.count(note) == 1
    document = json.loads(json.dumps(flow_statuses()[BRONZE.flow].as_json()))["executors"]
    assert (document["size"], document["running"], document["decision"]["reason"]) == (2, 1, "UNKNOWN")
    assert document["decision"]["inputs"]["most"] == 6
    assert document["decision"]["is_replayed"] is True
    cli.show_decisions()
    assert "  main  2  UNKNOWN: too few batches" in capsys.readouterr().out
