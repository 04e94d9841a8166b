"""Cleanup bounds the size of the control database. It deletes no row that an audit or an unfinished job needs."""

import itertools

import pytest
from sqlalchemy import Engine, Table, func, insert, select, text

from include import retention
from include.control import cleanup, schedule
from include.control.cleanup import DAY_SECONDS
from include.control.flows import sizing
from include.control.jobs import store
from include.control.store import database
from include.control.store.audit_chain import Chain
from include.control.store.job_schema import job_events, jobs
from include.control.store.schema import (
    acknowledgements,
    audits,
    incidents,
    leases,
    pauses,
    readers,
    scale_decisions,
    shutdowns,
)

BEGIN = 1_000_000_000.0
TABLE = "silver.a"


def add(engine: Engine, table: Table, *rows: dict) -> None:
    with database.transaction(engine) as connection:
        connection.execute(insert(table), list(rows))


def column(engine: Engine, table: Table, name: str) -> list:
    with database.transaction(engine) as connection:
        return sorted(connection.execute(select(table.c[name])).scalars())


def count(engine: Engine, table: Table) -> int:
    with database.transaction(engine) as connection:
        return connection.execute(select(func.count()).select_from(table)).scalar_one()


def audit(at: float, who: str = "ada", has_effect: bool = True) -> dict:
    words = {"action": "stop", "target": TABLE, "reason": "a test", "result": "stops"}
    return {"at": at, "who": who, **words, "has_effect": has_effect, "chain": str(Chain.of(who, has_effect))}


def incident(number: int, began_at: float, ended_at: float | None) -> dict:
    details = {"target": f"{TABLE}{number}", "state": "STUCK", "reason": "why", "error": ""}
    return {"number": number, "began_at": began_at, "ended_at": ended_at, **details}


def job(kind: str, number: int, state: str, at: float, root: int | None = None) -> dict:
    details = {"target": TABLE, "who": "ada", "reason": "why", "message": "it is done", "planned_at": at}
    ended_at = at if state in ("done", "skipped") else None
    numbers = {"kind": kind, "number": number, "root": root or number}
    return {**numbers, **details, "state": state, "state_at": at, "ended_at": ended_at}


def window(number: int, at: float, state: str) -> dict:
    return job("window", number, state, at)


def backfill(number: int, root: int, state: str = "done") -> dict:
    return job("backfill", number, state, BEGIN, root)


def rewind(number: int, state: str = "done") -> dict:
    return job("rewind", number, state, BEGIN)


def event(kind: str, number: int) -> dict:
    return {"kind": kind, "number": number, "at": BEGIN, "event": "approved"}


def stored_jobs(engine: Engine, kind: str) -> list[int]:
    with database.transaction(engine) as connection:
        return sorted(connection.execute(select(jobs.c.number).where(jobs.c.kind == kind)).scalars())


def lease(name: str, expires_at: float = 0.0) -> dict:
    return {"flow": name, "epoch": 7, "holder": "{}", "expires_at": expires_at}


def test_a_second_year_makes_the_control_database_no_larger_than_the_first(tmp_path):
    engine = database.connect(f"sqlite:///{tmp_path / 'control.db'}")
    numbers, sizes, step_days = itertools.count(1), [], 20
    for day in range(0, 3 * 400, step_days):
        began_at, cleanup_at = BEGIN + day * DAY_SECONDS, BEGIN + (day + step_days) * DAY_SECONDS
        add(engine, audits, *[audit(began_at)] * 20, *[audit(began_at, schedule.REQUESTER)] * 200)
        add(engine, incidents, *[incident(next(numbers), began_at, began_at + 60) for _ in range(20)])
        add(engine, jobs, *[window(next(numbers), began_at, "skipped") for _ in range(200)])
        add(engine, jobs, *[window(next(numbers), began_at, "done") for _ in range(20)])
        pause = {"flow": TABLE, "target": TABLE, "epoch": 1, "began_at": began_at, "ended_at": began_at + 1}
        add(engine, pauses, *[pause] * 50)
        add(engine, shutdowns, {"began_at": began_at, "drivers": "[]", "ended_at": began_at + 60})
        cleanup.forget(engine, cleanup_at)
        with database.transaction(engine) as connection:
            sizes.append(connection.execute(text("PRAGMA page_count")).scalar_one())
    assert sizes[-1] < 1.1 * sizes[410 // step_days]
    audit_steps, routine_steps = retention.AUDIT_DAYS // step_days, retention.ROUTINE_DAYS // step_days
    by_schedule = column(engine, audits, "who").count(schedule.REQUESTER)
    begins_chain = 1
    assert by_schedule == 200 * routine_steps + begins_chain
    assert count(engine, audits) - by_schedule - begins_chain == 20 * audit_steps == count(engine, incidents)
    assert count(engine, jobs) == 200 * routine_steps + 20 * audit_steps
    assert count(engine, pauses) == 50 * routine_steps


def test_decisions_about_executors_stay_as_long_as_the_audit_that_names_them(engine):
    numbers = itertools.count(1)

    def decision(days: float, size: int) -> dict:
        values = {"at": BEGIN - days * DAY_SECONDS, "driver": "main", "size": size, "size_before": 1, "reason": "MORE"}
        flags = {"need": 1.0, "has_backlog": False, "is_known": True, "is_news": True, "inputs": "{}"}
        return {"number": next(numbers), **values, **flags}

    def line(days: float, has_effect: bool) -> dict:
        return audit(BEGIN - days * DAY_SECONDS, sizing.REQUESTER, has_effect)

    ages = (retention.AUDIT_DAYS + 1, retention.ROUTINE_DAYS + 1, 1)
    add(engine, scale_decisions, *(decision(days, size) for days in ages for size in (1, 2)), decision(0, 1))
    add(engine, audits, *(line(days, has_effect) for days in ages for has_effect in (False, True)), line(0, False))
    lines = column(engine, audits, "number")
    cleanup.forget(engine, BEGIN)
    assert column(engine, scale_decisions, "number") == [4, 5, 6, 7]
    assert column(engine, audits, "number") == lines[1:], "the last one that is too old begins each chain"


def test_what_is_not_over_stays_however_old_it_is(engine):
    add(engine, incidents, incident(1, BEGIN, None), incident(2, BEGIN, BEGIN), incident(3, BEGIN, BEGIN))
    acknowledgement = {"who": "ada", "reason": "mine", "ends_at": BEGIN}
    add(engine, acknowledgements, {"incident": 1, **acknowledgement}, {"incident": 2, **acknowledgement})
    states = ("open", "asked", "done", "done")
    add(engine, jobs, *(window(number, BEGIN, state) for number, state in enumerate(states, 1)))
    # Backfill 1 is a request, and its follower 2 is unfinished.
    add(engine, jobs, backfill(1, 1), backfill(2, 1, "planned"), backfill(3, 3), backfill(4, 4))
    add(engine, jobs, rewind(1, "stopping"), rewind(2), rewind(3, "planned"), rewind(4))
    add(engine, job_events, *(event("rewind", number) for number in (1, 2, 3, 4)), event("window", 3))
    add(engine, shutdowns, {"began_at": BEGIN, "drivers": "[]", "ended_at": None})
    cleanup.forget(engine, BEGIN + 1_000 * DAY_SECONDS)
    assert column(engine, incidents, "number") == [1, 3]
    assert column(engine, acknowledgements, "incident") == [1]
    assert stored_jobs(engine, "window") == [1, 2, 4]
    assert stored_jobs(engine, "backfill") == [1, 2, 4]
    assert stored_jobs(engine, "rewind") == [1, 4]
    assert column(engine, job_events, "number") == [1, 4], "an approval is kept as long as its rewind"
    assert count(engine, shutdowns) == 1


def test_a_refresh_or_replay_that_nobody_has_completed_is_forgotten_like_those_that_are_done(engine):
    for kind, state in (("refresh", "refreshing"), ("replay", "planned")):
        add(engine, jobs, *(job(kind, number, at, BEGIN) for number, at in enumerate((state, "done", state), 1)))
    for days, left in ((1, [1, 2, 3]), (1_000, [3])):
        cleanup.forget(engine, BEGIN + days * DAY_SECONDS)
        assert (stored_jobs(engine, "refresh"), stored_jobs(engine, "replay")) == (left, left)


def test_no_epoch_of_a_flow_a_driver_or_a_window_goes_back(engine):
    kept_leases = [TABLE, "driver main", f"window {TABLE}", "backfill 2", "rewind 1"]
    add(engine, leases, *map(lease, [*kept_leases, "backfill 1", "backfill 9", "rewind 2"]))
    add(engine, leases, lease("backfill 3", BEGIN + 2_000 * DAY_SECONDS))
    add(engine, jobs, backfill(1, 1), backfill(2, 2, "computing"), rewind(1, "stopping"), rewind(2))
    cleanup.forget(engine, BEGIN + 1_000 * DAY_SECONDS)
    assert column(engine, leases, "flow") == sorted([*kept_leases, "backfill 3"])


@pytest.mark.parametrize("table", [audits, incidents, pauses], ids=str)
def test_a_number_is_never_given_twice(engine, table):
    row = {
        audits: audit(BEGIN),
        incidents: incident(1, BEGIN, BEGIN),
        pauses: {"flow": TABLE, "target": TABLE, "epoch": 1, "began_at": BEGIN, "ended_at": BEGIN},
    }[table]
    row = {name: value for name, value in row.items() if name != "number"}
    for _ in range(3):
        add(engine, table, row)
    highest = max(column(engine, table, "number"))
    cleanup.forget(engine, BEGIN + 1_000 * DAY_SECONDS)
    assert column(engine, table, "number") == [highest]
    add(engine, table, row)
    assert column(engine, table, "number") == [highest, highest + 1]


def test_more_than_one_transaction_may_delete_goes_in_several_and_goes_all(engine, monkeypatch):
    monkeypatch.setattr(cleanup, "MOST_ROWS", 10)
    add(engine, audits, *[audit(BEGIN)] * 35)
    reader = {"name": "report", "version": 1, "since": BEGIN}
    add(engine, readers, *[{**reader, "target": f"t{number}", "ends_at": BEGIN} for number in range(25)])
    add(engine, readers, {**reader, "target": TABLE, "ends_at": BEGIN + 1_000 * DAY_SECONDS})
    deleted = cleanup.forget(engine, BEGIN + 900 * DAY_SECONDS)
    assert deleted == {"audit": 34, "reader": 25}
    assert column(engine, readers, "target") == [TABLE]


def test_a_number_of_a_job_is_never_given_twice(engine: Engine):
    def insert_job() -> int:
        with database.transaction(engine) as connection:
            return store.insert_job(connection, "rewind", TABLE, "ada")

    add(engine, jobs, *(rewind(number) for number in (1, 2, 3)), *(backfill(number, number) for number in (7, 8)))
    cleanup.forget(engine, BEGIN + 1_000 * DAY_SECONDS)
    assert (stored_jobs(engine, "rewind"), stored_jobs(engine, "backfill")) == ([3], [8])
    assert insert_job() == 4
