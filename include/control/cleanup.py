"""Deletes old rows of the control database, so that it does not grow without limit."""

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

# Rows per transaction, small enough that nobody waits for it.
MOST_ROWS = 1_000
DAY_SECONDS = 86_400.0

Condition = ColumnElement[bool]


def forget(engine: Engine, now_seconds: float | None = None) -> dict[str, int]:
    """Delete rows that are older than `include.retention` allows. Returns the number of deleted rows by table.

    now_seconds: since 1970, by default by the database's clock. Raises Unreachable; earlier deletions are kept.
    """
    if now_seconds is None:
        with database.reading(engine) as connection:
            now_seconds = database.now(connection)
    deleted: dict[str, int] = {}
    for table, is_old in _old_rows(now_seconds):
        deleted[table.name] = deleted.get(table.name, 0) + _delete(engine, table, is_old)
    return {name: count for name, count in deleted.items() if count}


def _old_rows(now_seconds: float) -> Iterator[tuple[Table, Condition]]:
    def before(days: float) -> float:
        return now_seconds - days * DAY_SECONDS

    by_schedule = (audits.c.who == schedule.REQUESTER) & (audits.c.at < before(retention.ROUTINE_DAYS))
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
    # A requested backfill ends with the last backfill below it.
    unended = select(backfills.c.root).where(backfills.c.ended_at.is_(None))
    is_done = (backfills.c.ended_at < before(retention.JOB_DAYS)) & backfills.c.root.not_in(unended)
    yield backfills, _but_newest(backfills, is_done)
    never_begun = (rewinds.c.phase == "planned") & (rewinds.c.planned_at < before(retention.JOB_DAYS))
    yield rewinds, _but_newest(rewinds, or_(rewinds.c.ended_at < before(retention.JOB_DAYS), never_begun))
    yield approvals, approvals.c.at < before(retention.JOB_DAYS)
    for rows, kind in ((backfills, "backfill "), (rewinds, "rewind ")):
        # Epochs of flows, drivers and windows must never decrease; a job's number is never reused.
        unfinished = select(kind + cast(rows.c.number, String)).where(rows.c.ended_at.is_(None))
        is_job_lease = leases.c.flow.startswith(kind) & leases.c.flow.not_in(unfinished)
        yield leases, is_job_lease & (leases.c.expires_at < before(retention.ROUTINE_DAYS))


def _but_newest(table: Table, is_old: Condition) -> Condition:
    """Excludes the newest row: SQLite would reuse its number, because it continues from the highest number it finds."""
    return is_old & (table.c.number < select(func.max(table.c.number)).scalar_subquery())


def _delete(engine: Engine, table: Table, is_old: Condition) -> int:
    key = next(iter(table.primary_key.columns))
    count, total = MOST_ROWS, 0
    while count == MOST_ROWS:
        with database.transaction(engine) as connection:
            keys = connection.execute(select(key).where(is_old).limit(MOST_ROWS)).scalars().all()
            count = connection.execute(delete(table).where(key.in_(keys), is_old)).rowcount if keys else 0
        total += count
    return total
