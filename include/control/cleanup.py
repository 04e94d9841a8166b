"""Deletes old rows of the control database, so that it does not grow without limit."""

from collections.abc import Callable, Iterator

from sqlalchemy import ColumnElement, Engine, String, Table, cast, delete, exists, func, or_, select, tuple_

from include import retention
from include.control.jobs.store import PLANNED, SKIPPED
from include.control.jobs.windows import ASKED, OPEN
from include.control.store import database
from include.control.store.audit_chain import Chain
from include.control.store.job_id import JobKind
from include.control.store.job_schema import job_events, jobs
from include.control.store.schema import (
    acknowledgements,
    audits,
    incidents,
    leases,
    pauses,
    readers,
    samples,
    scale_decisions,
    shutdowns,
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

    for chain in Chain:
        yield audits, _beginning_of(chain, before(chain.kept_days))
    yield audits, _but_newest(audits, audits.c.chain.is_(None) & (audits.c.at < before(retention.AUDIT_DAYS)))
    changed_nothing = scale_decisions.c.size == scale_decisions.c.size_before
    old_decision = or_(
        scale_decisions.c.at < before(retention.AUDIT_DAYS),
        changed_nothing & (scale_decisions.c.at < before(retention.ROUTINE_DAYS)),
    )
    yield scale_decisions, _but_newest(scale_decisions, old_decision)
    yield incidents, _but_newest(incidents, incidents.c.ended_at < before(retention.INCIDENT_DAYS))
    yield acknowledgements, acknowledgements.c.incident.not_in(select(incidents.c.number))
    yield pauses, _but_newest(pauses, pauses.c.ended_at < before(retention.ROUTINE_DAYS))
    yield readers, readers.c.ends_at < before(retention.ROUTINE_DAYS)
    yield samples, samples.c.at < before(retention.SAMPLE_DAYS)
    yield shutdowns, shutdowns.c.ended_at < before(retention.SHUTDOWN_DAYS)
    yield (
        jobs,
        _old_jobs(before)
        & tuple_(jobs.c.kind, jobs.c.number).not_in(select(jobs.c.kind, func.max(jobs.c.number)).group_by(jobs.c.kind)),
    )
    is_of = (jobs.c.kind == job_events.c.kind) & (jobs.c.number == job_events.c.number)
    yield job_events, ~exists().where(is_of)
    # Epochs of flows, drivers and windows must never decrease; a job's number is never reused.
    unfinished = select(jobs.c.kind + " " + cast(jobs.c.root, String)).where(jobs.c.ended_at.is_(None))
    kinds = select(jobs.c.kind).where(jobs.c.kind != JobKind.WINDOW).distinct().subquery()
    is_job_lease = exists().where(leases.c.flow.startswith(kinds.c.kind + " ")) & leases.c.flow.not_in(unfinished)
    yield leases, is_job_lease & (leases.c.expires_at < before(retention.ROUTINE_DAYS))


def _old_jobs(before: Callable[[float], float]) -> Condition:
    """The jobs that are over for long. What was planned and never begun is over, but a backfill is still due.

    What a refresh or a replay has left is known from its tables, and it holds no flow.
    """
    is_window, is_planned = jobs.c.kind == JobKind.WINDOW, jobs.c.state == PLANNED
    skipped = (jobs.c.state == SKIPPED) & (jobs.c.planned_at < before(retention.ROUTINE_DAYS))
    old_window = is_window & jobs.c.state.not_in((ASKED, OPEN)) & (jobs.c.planned_at < before(retention.WINDOW_DAYS))
    # A request ends with the last job that follows it.
    part = jobs.alias()
    is_unended_part = (part.c.kind == jobs.c.kind) & (part.c.root == jobs.c.root) & part.c.ended_at.is_(None)
    is_done = ~is_window & (jobs.c.ended_at < before(retention.JOB_DAYS)) & ~exists().where(is_unended_part)
    is_dropped = (is_planned & (jobs.c.kind != JobKind.BACKFILL)) | jobs.c.kind.in_((JobKind.REFRESH, JobKind.REPLAY))
    is_dropped &= jobs.c.planned_at < before(retention.JOB_DAYS)
    return or_(skipped, old_window, is_done, is_dropped)


def _beginning_of(chain: Chain, oldest_seconds: float) -> Condition:
    """The rows before the newest one of those that are too old, which begins the chain from then on."""
    others = audits.alias()
    first_kept = select(func.min(others.c.number)).where(others.c.chain == chain, others.c.at >= oldest_seconds)
    newest = select(func.max(others.c.number) + 1).where(others.c.chain == chain)
    is_old = audits.c.number < func.coalesce(first_kept.scalar_subquery(), newest.scalar_subquery())
    begins = select(func.max(audits.c.number)).where(audits.c.chain == chain, is_old).scalar_subquery()
    return (audits.c.chain == chain) & (audits.c.number < begins)


def _but_newest(table: Table, is_old: Condition) -> Condition:
    """Excludes the newest row: SQLite would reuse its number, because it continues from the highest number it finds."""
    return is_old & (table.c.number < select(func.max(table.c.number)).scalar_subquery())


def _delete(engine: Engine, table: Table, is_old: Condition) -> int:
    key = tuple_(*table.primary_key.columns)
    count, total = MOST_ROWS, 0
    while count == MOST_ROWS:
        with database.transaction(engine) as connection:
            # In order: what is left of the audit after each transaction is still a chain.
            oldest = select(*table.primary_key.columns).where(is_old).order_by(*table.primary_key.columns)
            keys = connection.execute(oldest.limit(MOST_ROWS)).all()
            count = connection.execute(delete(table).where(key.in_(keys), is_old)).rowcount if keys else 0
        total += count
    return total
