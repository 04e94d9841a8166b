"""The stored state of backfills: stopped readers, stale tables, and what a retry finds."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from sqlalchemy import Engine, select

from include.cli import jobs
from include.control import commands
from include.control.commands import Action, Command
from include.control.flows import orders
from include.control.jobs import backfills, rewinds, stale_rows, store
from include.control.jobs.backfills import Backfill, Follower
from include.control.leases import lease
from include.control.store import database, job_id
from include.control.store.schema import audits, resets
from include.flows import delta_source
from include.project.ranges import Slice
from include.settings import settings
from include.spec import Delta
from tests.support import lake

SILVER, GOLD, OTHER = "silver.tracker_readings", "gold.heart_rate_by_model", "gold.other"
DAY = Slice(datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC))
NEXT = Slice(datetime(2026, 3, 2, tzinfo=UTC), datetime(2026, 3, 3, tzinfo=UTC))
BOTH = Slice(DAY.begin, NEXT.end)


def wanted_state(engine: Engine, flow: str) -> str:
    with database.transaction(engine) as connection:
        return orders.order(connection, flow).state


def all_resets(engine: Engine) -> list[str]:
    with database.transaction(engine) as connection:
        return list(connection.execute(select(resets.c.flow)).scalars())


def test_the_same_is_taken_up_where_its_job_has_died_and_another_is_another(engine: Engine, holder: Callable):
    backfill = backfills.begin(engine, SILVER, DAY, "ada")
    assert (backfill.root, backfill.state, str(backfill.range)) == (backfill.number, "planned", str(DAY))
    assert backfill.message == str(DAY)
    assert backfills.begin(engine, SILVER, DAY, "bob").number == backfill.number
    assert backfills.begin(engine, SILVER, NEXT, "bob").number != backfill.number
    assert backfills.begin(engine, GOLD, DAY, "bob").number != backfill.number
    lease.acquire(engine, [str(job_id.backfill(backfill.root))], holder(), 60)
    assert backfills.begin(engine, SILVER, DAY, "bob").number != backfill.number, "its job lives"


def test_a_phase_that_begins_takes_the_failure_of_the_last_try_away_and_says_when(engine: Engine):
    first, second = backfills.begin(engine, SILVER, DAY, "ada"), backfills.begin(engine, SILVER, NEXT, "ada")
    store.record_failure(engine, first, "no space left", resumes_flows=True)
    before = store.newest(engine, Backfill)[1].state_at
    store.enter(engine, first, backfills.COMPUTING, "computes rows")
    found = store.get(engine, Backfill, first.number)
    assert (found.state, found.message, found.failure) == (backfills.COMPUTING, "computes rows", None)
    assert found.state_at > before
    assert [backfill.number for backfill in store.newest(engine, Backfill)] == [second.number, first.number]
    assert [backfill.number for backfill in store.newest(engine, Backfill, limit=1)] == [second.number]


def test_readers_are_stopped_and_what_was_wanted_of_them_comes_back(engine: Engine):
    commands.execute(engine, Command(Action.DRAIN, (OTHER,), "ada", "the weekend"))
    backfill = backfills.begin(engine, SILVER, DAY, "ada")
    for _ in range(2):
        # A retry must not remember the stop of the first try as the wanted state.
        backfills.stop_readers(engine, backfill, [GOLD, OTHER])
        assert (wanted_state(engine, GOLD), wanted_state(engine, OTHER)) == ("stopped", "stopped")
    assert store.get(engine, Backfill, backfill.number).stopped.keys() == {GOLD, OTHER}
    store.record_failure(engine, backfill, "no space left", resumes_flows=True)
    assert (wanted_state(engine, GOLD), wanted_state(engine, OTHER)) == ("running", "draining")
    assert store.get(engine, Backfill, backfill.number).stopped == {} and all_resets(engine) == []
    assert store.newest(engine, Backfill)[0].failure == "no space left"


def test_a_retry_stops_readers_that_the_try_before_did_not_know_and_the_audit_names_each(engine: Engine):
    backfill = backfills.begin(engine, SILVER, DAY, "ada")
    backfills.stop_readers(engine, backfill, [GOLD])
    backfills.stop_readers(engine, backfill, [GOLD, OTHER])
    assert (wanted_state(engine, GOLD), wanted_state(engine, OTHER)) == ("stopped", "stopped")
    store.record_failure(engine, backfill, "no space left", resumes_flows=True)
    assert (wanted_state(engine, GOLD), wanted_state(engine, OTHER)) == ("running", "running")
    with database.reading(engine) as connection:
        entries = [
            (row.target, row.action, row.who) for row in connection.execute(select(audits).order_by(audits.c.number))
        ]
    assert entries == [(flow, action, "ada") for action in ("stop", "start") for flow in (GOLD, OTHER)]


def test_a_range_that_is_replaced_gives_readers_a_new_generation_and_followers_their_turn(engine: Engine):
    backfill = backfills.begin(engine, SILVER, DAY, "ada")
    backfills.stop_readers(engine, backfill, [GOLD, OTHER])
    followers = [Follower(GOLD, DAY), Follower(OTHER, "nobody can tell")]
    backfills.finish(engine, backfill, 7, (10, 12), followers, {})
    done = store.get(engine, Backfill, backfill.number)
    assert (done.outcome, done.version) == ({"version": 7, "rows_before": 10, "rows_after": 12}, 7)
    with database.reading(engine) as connection:
        [entry] = connection.execute(select(audits).where(audits.c.action == "backfill")).all()
    assert (entry.target, entry.reason, entry.result) == (SILVER, str(DAY), "10 rows before, 12 after")
    assert (wanted_state(engine, GOLD), all_resets(engine)) == ("running", [GOLD, OTHER])
    assert [stale_table.table for stale_table in stale_rows.stale_ranges(engine)] == [GOLD, OTHER]
    [follower] = backfills.unfinished(engine, backfill.root)
    assert (follower.table, follower.root, follower.range) == (GOLD, backfill.number, DAY)
    backfills.finish(engine, follower, 8, (1, 1), [], {})
    assert [stale_table.table for stale_table in stale_rows.stale_ranges(engine)] == [OTHER]
    assert backfills.unfinished(engine, backfill.root) == []
    backfills.finish(engine, backfills.begin(engine, OTHER, NEXT, "ada"), 3, (0, 0), [], {})
    assert [stale_table.table for stale_table in stale_rows.stale_ranges(engine)] == [OTHER], "that is another range"
    backfills.finish(engine, backfills.begin(engine, OTHER, BOTH, "ada"), 4, (0, 0), [], {})
    assert stale_rows.stale_ranges(engine) == []


def test_a_table_below_two_that_are_made_again_is_made_again_once(engine: Engine):
    backfill = backfills.begin(engine, SILVER, DAY, "ada")
    backfills.finish(engine, backfill, 7, (1, 1), [Follower(GOLD, DAY), Follower(OTHER, DAY)], {})
    backfills.finish(engine, backfills.unfinished(engine, backfill.root)[0], 8, (1, 1), [Follower(OTHER, DAY)], {})
    assert [entry.table for entry in backfills.unfinished(engine, backfill.root)] == [OTHER]


def test_what_was_left_undone_inside_a_range_is_done_with_it(engine: Engine, holder: Callable):
    dead_job, wider_job = (backfills.begin(engine, SILVER, range_, "ada") for range_ in (DAY, BOTH))
    live_job = backfills.begin(engine, SILVER, replace(DAY, begin=datetime(2026, 3, 1, 12, tzinfo=UTC)), "ada")
    lease.acquire(engine, [str(job_id.backfill(live_job.root))], holder(), 60)
    lease.acquire(engine, [str(job_id.backfill(dead_job.root))], holder(), 60)
    second_job = backfills.begin(engine, SILVER, DAY, "bob")
    assert second_job.number != dead_job.number
    with database.transaction(engine) as connection:
        connection.exec_driver_sql(
            f"UPDATE lease SET expires_at = 0 WHERE flow = '{str(job_id.backfill(dead_job.root))}'"
        )
    backfills.finish(engine, second_job, 7, (1, 1), [], {})
    phases = {backfill.number: backfill.state for backfill in store.newest(engine, Backfill)}
    assert phases == {
        dead_job.number: "done",
        wider_job.number: "planned",
        live_job.number: "planned",
        second_job.number: "done",
    }


def test_what_another_backfill_has_done_ended_when_it_did_and_says_which(engine: Engine):
    covered, other = backfills.begin(engine, SILVER, DAY, "ada"), backfills.begin(engine, GOLD, DAY, "ada")
    store.record_failure(engine, covered, "no space left", resumes_flows=True)
    wide = backfills.begin(engine, SILVER, BOTH, "ada")
    backfills.finish(engine, wide, 1, (1, 1), [], {})
    row, own = (store.get(engine, Backfill, number) for number in (covered.number, wide.number))
    assert (row.state, row.message, row.failure) == (backfills.DONE, f"backfill {wide.number} did it", None)
    assert row.ended_at == pytest.approx(own.ended_at, abs=60)
    assert own.message != row.message
    assert store.get(engine, Backfill, other.number).state == backfills.PLANNED


def test_what_has_stopped_readers_is_not_done_before_they_go_on(engine: Engine):
    dead_job = backfills.begin(engine, SILVER, DAY, "ada")
    backfills.stop_readers(engine, dead_job, [GOLD])
    backfills.finish(engine, backfills.begin(engine, SILVER, BOTH, "bob"), 7, (1, 1), [], {})
    assert [entry.number for entry in backfills.unfinished(engine, table=SILVER)] == [dead_job.number]


def test_a_failure_behind_the_replacement_is_stored_and_leaves_the_readers_stopped(engine: Engine):
    backfill, other = backfills.begin(engine, SILVER, DAY, "ada"), backfills.begin(engine, SILVER, NEXT, "ada")
    backfills.stop_readers(engine, backfill, [GOLD])
    store.record_failure(engine, backfill, "no space left")
    assert store.get(engine, Backfill, backfill.number).failure == "no space left"
    assert store.get(engine, Backfill, other.number).failure is None
    assert wanted_state(engine, GOLD) == "stopped"


def test_backfills_that_are_at_work_or_have_stopped_readers_block_a_rewind(engine: Engine, holder: Callable):
    ended, idle, stopped, held = (
        backfills.begin(engine, table, DAY, "ada") for table in (OTHER, GOLD, SILVER, "silver.held")
    )
    backfills.stop_readers(engine, stopped, [GOLD])
    lease.acquire(engine, [str(job_id.backfill(held.root))], holder(), 60)
    backfills.stop_readers(engine, ended, [GOLD])
    backfills.finish(engine, ended, 1, (1, 1), [], {})
    with database.reading(engine) as connection:
        reasons = rewinds.blocking_jobs(connection, {OTHER, SILVER, "silver.held", GOLD})
    assert [reason.partition(":")[0] for reason in reasons] == [SILVER, "silver.held"]
    unfinished = [one.number for table in (OTHER, GOLD) for one in backfills.unfinished(engine, table=table)]
    assert unfinished == [idle.number]


def test_a_new_generation_begins_behind_backfills_that_come_next_and_before_any_other_row(home):
    for metadata in ({}, {"batch": 1}, {"backfill": {}}, {"backfill": {}}, {"batch": 2}, {"backfill": {}}):
        lake.rows(SILVER, 1, 10, 10, **metadata)

    def skip_replacements(version: int, index: int = -1, is_first: bool = False) -> tuple[int, int, bool]:
        offset = delta_source.skip_replacements(lake.delta_offset(version, index, is_first), Delta(SILVER))
        return offset["reservoirVersion"], offset["index"], offset["isStartingVersion"]

    # Both offsets mean the end of version 1.
    assert skip_replacements(2) == skip_replacements(1, index=1) == (4, -1, False)
    assert skip_replacements(1, index=0) == (1, 0, False)
    assert skip_replacements(4) == (4, -1, False)
    assert skip_replacements(5) == skip_replacements(6) == (6, -1, False)
    # The snapshot that the stream began with has four files.
    assert skip_replacements(1, index=3, is_first=True) == (4, -1, False)
    assert skip_replacements(1, index=2, is_first=True) == (1, 2, True)


@pytest.fixture
def said(home, capsys) -> Callable[..., str]:
    """The output of `python -m include.ledger backfills`."""

    def run(**options) -> str:
        jobs.show_backfills(**options)
        return capsys.readouterr().out

    return run


def test_the_command_shows_how_far_each_has_come_and_what_is_stale(said, home, own_settings):
    own_settings(SLUICE_CONTROL_URL=f"sqlite:///{home / 'control.db'}")
    engine = database.connect(settings().control_url)
    assert said() == "no backfill yet\n"
    backfill = backfills.begin(engine, SILVER, DAY, "ada")
    assert "its job died while planned" in said()
    backfills.finish(engine, backfill, 7, (1_000, 1_002), [Follower(OTHER, "nobody can tell: do this")], {})
    lines = said().splitlines()
    assert lines[0].endswith(f"done      {SILVER} from 2026-03-01T00:00:00Z to 2026-03-02T00:00:00Z  by ada")
    assert lines[1].startswith("      1,000 rows before, 1,002 after, version 7, ")
    assert f"{OTHER}: STALE since " in lines[2] and lines[2].endswith("nobody can tell: do this")
    assert said(table=GOLD) == "no backfill yet\n"
    document = json.loads(said(as_json=True))
    assert document["backfills"][0]["range"]["from"] == "2026-03-01T00:00:00.000000Z"
    assert document["stale"][0]["table"] == OTHER
