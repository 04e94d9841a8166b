"""Whoever looks sees what is asked for, under way, failed and refused, and nothing that is over."""

import pytest
from sqlalchemy import Engine, update

from include.control import commands, pending_work
from include.control.commands import Action, Command
from include.control.flows import sizing
from include.control.jobs import backfills, store, windows
from include.control.leases import lease
from include.control.pending_work import Stage
from include.control.store import audit, database, job_id
from include.control.store.job_id import JobKind
from include.control.store.job_schema import job_events, jobs
from include.control.store.schema import leases
from include.project.ranges import Slice

TABLE = "silver.a"


def stages(engine: Engine) -> list[tuple[str, Stage]]:
    return [(work.subject, work.stage) for work in pending_work.read(engine)]


def failed(engine: Engine) -> list[str]:
    with database.reading(engine) as connection:
        return [str(job.id) for job in pending_work.failed_jobs(connection)]


def pass_time(engine: Engine) -> None:
    """Moves the times of jobs and leases back, until Airflow tries nothing again."""
    with database.transaction(engine) as connection:
        for column in (jobs.c.state_at, job_events.c.at, leases.c.expires_at):
            connection.execute(update(column.table).values({column: column - 2 * store.AGAIN_SECONDS}))


def test_a_job_waits_then_is_at_work_then_failed_then_gone(engine, holder):
    backfill = backfills.begin(engine, TABLE, Slice(), "ada")
    assert stages(engine) == [("backfill 1", Stage.WAITING)]
    process = holder()
    lease.acquire(engine, [str(job_id.backfill(1))], process, 60)
    assert stages(engine) == [("backfill 1", Stage.AT_WORK)]
    assert failed(engine) == []
    process.python.kill()
    store.record_failure(engine, backfill, "no space left")
    assert stages(engine) == [("backfill 1", Stage.FAILED)]
    pass_time(engine)
    assert failed(engine) == ["backfill 1"]
    store.finish(engine, backfill, "done")
    assert (stages(engine), failed(engine)) == ([], [])


@pytest.mark.parametrize("says_why", [True, False])
def test_a_job_is_no_alarm_while_the_next_try_of_its_task_may_follow(engine, holder, says_why: bool):
    backfill, process = backfills.begin(engine, TABLE, Slice(), "ada"), holder()
    with database.transaction(engine) as connection:
        store.set_state(connection, backfill.id, "computing")
    lease.acquire(engine, [str(job_id.backfill(1))], process, 60)
    pass_time(engine)
    lease.acquire(engine, [str(job_id.backfill(1))], process, 60)
    process.python.kill()
    if says_why:
        store.record_failure(engine, backfill, "no space left")
    assert (stages(engine), failed(engine)) == ([("backfill 1", Stage.FAILED)], [])
    pass_time(engine)
    assert failed(engine) == ["backfill 1"]


def test_a_refresh_that_failed_is_over_with_the_next_one_of_its_view(engine):
    with database.transaction(engine) as connection:
        for _ in range(2):
            store.insert_job(connection, JobKind.REFRESH, "gold.v", "ann")
        connection.execute(update(jobs).where(jobs.c.number == 1).values(failure="no space left"))
    assert failed(engine) == []
    with database.transaction(engine) as connection:
        connection.execute(update(jobs).where(jobs.c.number == 2).values(failure="no space left"))
    pass_time(engine)
    assert failed(engine) == ["refresh 2"]


def test_a_window_that_failed_has_an_alarm_of_its_own(engine):
    number = windows.plan(engine, TABLE, "ann", "small files", is_worth_it=True)
    with database.transaction(engine) as connection:
        connection.execute(update(jobs).where(jobs.c.number == number).values(failure="no space left"))
    assert stages(engine) == [(f"window {number}", Stage.FAILED)]
    assert failed(engine) == []


@pytest.mark.parametrize(("who", "is_listed"), [("ada", True), (sizing.REQUESTER, False)])
def test_a_command_of_a_person_that_had_no_effect_is_listed(engine, who: str, is_listed: bool):
    with database.transaction(engine) as connection:
        audit.record(connection, who, "stop", TABLE, "why", "nothing done, it is stopped", has_effect=False)
        audit.record(connection, who, "stop", TABLE, "why", "stops after the current batch")
    assert stages(engine) == ([("stop", Stage.REFUSED)] if is_listed else [])


def test_a_restart_of_a_driver_waits_until_it_has_ended(engine, holder):
    driver = holder("main")
    lease.acquire(engine, [lease.driver_lease("main")], driver, 60)
    commands.execute(engine, Command(Action.RESTART, (TABLE,), "ada", "why", driver="main"))
    assert stages(engine) == [("restart", Stage.WAITING)]
    driver.python.kill()
    lease.acquire(engine, [lease.driver_lease("main")], holder("main"), 60)
    assert stages(engine) == []
