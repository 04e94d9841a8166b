"""Forgets what the control database has kept for long enough: nothing in it grows for ever."""

from collections.abc import Iterator

from sqlalchemy import ColumnElement, Engine, String, Table, cast, delete, func, or_, select

from include import retention
from include.control import schedule
from include.control.store import database
from include.control.store.job_schema import approvals, backfills, rewinds
from include.control.store.schema import (
    acknowledgements,
    audits,
    incidents,
    leases,
    pauses,
    readers,
    shutdowns,
    window_requests,
    windows,
)

# Of one transaction, so that nobody waits for it.
MOST_ROWS = 1_000
DAY_SECONDS = 86_400.0

Condition = ColumnElement[bool]


def forget(engine: Engine, now: float | None = None) -> dict[str, int]:
    """Delete what is older than `include.retention` says; by table, how many rows.

    now: seconds since 1970, the database's clock by default. Raises Unreachable; what is deleted by then stays so.
    """
    if now is None:
        with database.reading(engine) as connection:
            now = database.now(connection)
    deleted: dict[str, int] = {}
    for table, is_old in _old(now):
        deleted[table.name] = deleted.get(table.name, 0) + _delete(engine, table, is_old)
    return {name: count for name, count in deleted.items() if count}


def _old(now: float) -> Iterator[tuple[Table, Condition]]:
    def before(days: float) -> float:
        return now - days * DAY_SECONDS

    by_schedule = (audits.c.who == schedule.WHO) & (audits.c.at < before(retention.ROUTINE_DAYS))
    yield audits, _but_newest(audits, or_(audits.c.at < before(retention.AUDIT_DAYS), by_schedule))
    yield incidents, _but_newest(incidents, incidents.c.ended_at < before(retention.INCIDENT_DAYS))
    yield acknowledgements, acknowledgements.c.incident.not_in(select(incidents.c.number))
    skipped = (windows.c.state == "skipped") & (windows.c.planned_at < before(retention.ROUTINE_DAYS))
    ended = windows.c.state.not_in(("asked", "open")) & (windows.c.planned_at < before(retention.WINDOW_DAYS))
    yield windows, _but_newest(windows, or_(skipped, ended))
    yield window_requests, window_requests.c.number.not_in(select(windows.c.number))
    yield pauses, _but_newest(pauses, pauses.c.ended_at < before(retention.ROUTINE_DAYS))
    yield readers, readers.c.ends_at < before(retention.ROUTINE_DAYS)
    yield shutdowns, shutdowns.c.ended_at < before(retention.SHUTDOWN_DAYS)
    # A backfill that somebody asked for ends with the last of those that follow it.
    unended = select(backfills.c.root).where(backfills.c.ended_at.is_(None))
    done = (backfills.c.ended_at < before(retention.JOB_DAYS)) & backfills.c.root.not_in(unended)
    yield backfills, _but_newest(backfills, done)
    never_begun = (rewinds.c.phase == "planned") & (rewinds.c.planned_at < before(retention.JOB_DAYS))
    yield rewinds, _but_newest(rewinds, or_(rewinds.c.ended_at < before(retention.JOB_DAYS), never_begun))
    yield approvals, approvals.c.at < before(retention.JOB_DAYS)
    for rows, kind in ((backfills, "backfill "), (rewinds, "rewind ")):
        # The epochs of flows, drivers and windows must never go back; a job's number never comes again.
        left = select(kind + cast(rows.c.number, String)).where(rows.c.ended_at.is_(None))
        job = leases.c.flow.startswith(kind) & leases.c.flow.not_in(left)
        yield leases, job & (leases.c.expires_at < before(retention.ROUTINE_DAYS))


def _but_newest(table: Table, is_old: Condition) -> Condition:
    """Its number is not given to another one then: SQLite goes on from the highest that it finds."""
    return is_old & (table.c.number < select(func.max(table.c.number)).scalar_subquery())


def _delete(engine: Engine, table: Table, is_old: Condition) -> int:
    key = next(iter(table.primary_key.columns))
    count, total = MOST_ROWS, 0
    while count == MOST_ROWS:
        with database.transaction(engine) as connection:
            some = connection.execute(select(key).where(is_old).limit(MOST_ROWS)).scalars().all()
            count = connection.execute(delete(table).where(key.in_(some), is_old)).rowcount if some else 0
        total += count
    return total
