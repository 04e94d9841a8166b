"""The commands about jobs: what was planned, runs or is done, previews, and versions kept for a reader."""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from sqlalchemy import Engine

from include import catalog
from include.cli.output import FlowName, Json, Limit, TableName, moment, show
from include.control import vacuum_holds
from include.control.jobs import all_kinds, stale_rows
from include.control.jobs.backfills import Backfill
from include.control.jobs.rewinds import Rewind
from include.control.jobs.stale_rows import Stale
from include.control.jobs.store import FAILED, PLANNED, StoredJob
from include.control.jobs.windows import Window
from include.control.requesters import system_user
from include.control.store import database
from include.control.store.job_id import JobKind
from include.delta.delta_log import DeltaLog
from include.errors import UsageError
from include.lake import locations
from include.maintenance import table_survey
from include.monitoring.stale_rows import stale_words
from include.recovery import reset, rewind_plan
from include.recovery.reset import ResetPreview
from include.settings import settings

OfTable = Annotated[str | None, typer.Argument(metavar="TABLE", help="Of this table only.")]
# An unfinished job that nobody does any more. No job is stored in this state.
DIED = "died"
Why = Annotated[str, typer.Option("--reason", metavar="WHY", help="For whoever reads the audit.")]
Reader = Annotated[str, typer.Option("--name", metavar="WHO", help="The reader, by a name of its own.")]


def show_jobs(
    table: OfTable = None,
    kind: Annotated[str | None, typer.Option(help=f"Of this kind only: {', '.join(JobKind)}.")] = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List the jobs of all kinds, newest first, and then the tables that are stale."""
    engine = database.connect(settings().control_url)
    listed = all_kinds.newest(engine, kind, table, limit)
    stale = _stale(engine, table) if kind in (None, JobKind.BACKFILL) else []
    if table and not listed:
        # Raises for an unknown table. A table that is no longer declared may still have jobs.
        catalog.load().owner(table)
    heads = ((job.kind if number == 0 else "", line) for job in listed for number, line in enumerate(_lines(job)))
    lines = [f"{head:<9}{line}" for head, line in heads] or ["no job yet"]
    document = {"jobs": list(map(_document, listed)), "stale": list(map(_with_range, stale))}
    show(as_json, document, [*lines, *map(stale_words, stale)])


def show_windows(table: OfTable = None, limit: Limit = 50, as_json: Json = False) -> None:
    """List past, running, planned and skipped windows, newest first."""
    _show_kind(JobKind.WINDOW, table, limit, as_json, "no window was planned yet")


def show_backfills(table: OfTable = None, limit: Limit = 50, as_json: Json = False) -> None:
    """List ranges that were recomputed, or are just now, newest first, and tables that are stale."""
    if table:
        catalog.load().table(table)
    engine = database.connect(settings().control_url)
    listed, stale = all_kinds.newest(engine, JobKind.BACKFILL, table, limit), _stale(engine, table)
    document = {"backfills": list(map(_document, listed)), "stale": list(map(_with_range, stale))}
    lines = [line for job in listed for line in _lines(job)] or ["no backfill yet"]
    show(as_json, document, [*lines, *map(stale_words, stale)])


def show_rewinds(limit: Limit = 20, as_json: Json = False) -> None:
    """List planned, running and done rewinds, newest first."""
    _show_kind(JobKind.REWIND, None, limit, as_json, "no rewind yet")


def _show_kind(kind: JobKind, table: str | None, limit: int, as_json: bool, nothing: str) -> None:
    listed = all_kinds.newest(database.connect(settings().control_url), kind, table, limit)
    show(as_json, list(map(_document, listed)), (line for job in listed for line in _lines(job)), nothing)


def _stale(engine: Engine, table: str | None) -> list[Stale]:
    return [mark for mark in stale_rows.stale_ranges(engine) if table in (None, mark.table)]


def _with_range(entry: Backfill | Stale) -> dict[str, Any]:
    begin, end = entry.range.texts
    return {**asdict(entry), "range": {"from": begin, "to": end}}


def _document(job: StoredJob) -> dict[str, Any]:
    """What programs read. It has the names of the list of each kind, besides those of all kinds."""
    of_all = {**job.parameters, **job.outcome, **asdict(job)}
    if isinstance(job, Window):
        return {"before": None, "after": None, **of_all} | {
            "why": job.reason,
            "step": job.message or None,
            "closed_at": job.ended_at,
        }
    of_all |= {"phase": job.state, "phase_at": job.state_at}
    if isinstance(job, Backfill):
        result = {"version": None, "rows_before": None, "rows_after": None}
        return {**result, **of_all, **_with_range(job), "readers": job.stopped}
    return of_all


def _lines(job: StoredJob) -> Iterator[str]:
    match job:
        case Window():
            return _window_lines(job)
        case Backfill():
            return _backfill_lines(job)
        case Rewind():
            return _rewind_lines(job)
    return _other_lines(job)


def _other_lines(job: StoredJob) -> Iterator[str]:
    state = FAILED if job.failure else DIED if job.is_abandoned and job.state != PLANNED else job.state
    reason = f": {job.reason}" if job.reason else ""
    yield f"{job.number:>4}  {moment(job.planned_at)}  {state:<10}{job.table}  by {job.who}{reason}"
    if job.failure or job.message:
        yield f"      {job.failure or job.message}"
    yield from _stopped_line(job)


def _stopped_line(job: StoredJob) -> Iterator[str]:
    if job.stopped:
        yield f"      has stopped {', '.join(job.stopped)}"


def _window_lines(window: Window) -> Iterator[str]:
    begun_at = moment(window.opened_at or window.planned_at)
    yield f"{window.number:>4}  {begun_at}  {window.state:<8}{window.table}  by {window.who}"
    yield f"      {window.reason}"
    if window.state == FAILED and window.message:
        yield f"      ended at: {window.message}"
    if window.before and window.after:
        before, after = window.before, window.after
        yield (
            f"      files {before.files:,} -> {after.files:,}, MB {before.bytes / 1e6:,.1f} -> "
            f"{after.bytes / 1e6:,.1f}, small {before.small_ratio:.0%} -> {after.small_ratio:.0%}, "
            f"open for {(window.ended_at or 0) - (window.opened_at or 0):.1f} s"
        )
    for pause in window.pauses:
        outside = f"{pause.beyond_seconds:.1f} s of that while no window was open"
        yield f"      {pause.flow} waited {pause.seconds:.1f} s, {outside}"


def _backfill_lines(backfill: Backfill) -> Iterator[str]:
    below = "" if backfill.root == backfill.number else f", below backfill {backfill.root}"
    state = DIED if backfill.is_abandoned and not backfill.failure else FAILED if backfill.failure else backfill.state
    yield (
        f"{backfill.number:>4}  {moment(backfill.planned_at)}  {state:<10}{backfill.table} {backfill.range}  "
        f"by {backfill.who}{below}"
    )
    seconds = (backfill.ended_at or backfill.state_at) - backfill.planned_at
    if backfill.ended_at is not None:
        version = "" if backfill.version is None else f", version {backfill.version}"
        yield f"      {backfill.message}{version}, {seconds:,.0f} s after it was asked for"
    elif backfill.failure:
        yield f"      {backfill.failure}"
    elif backfill.is_abandoned:
        yield (
            f"      its job died while {backfill.state} ({backfill.message}): the same command, the task or action "
            f"give up ends it"
        )
    else:
        yield f"      {backfill.message}, since {datetime.fromtimestamp(backfill.state_at, UTC):%H:%M:%S}Z"
    yield from _stopped_line(backfill)


def _rewind_lines(rewind: Rewind) -> Iterator[str]:
    is_dead = rewind.is_begun and not rewind.is_held
    state = FAILED if rewind.failure and rewind.is_begun else DIED if is_dead else rewind.state
    request = f"{rewind.table} to {rewind.moment}  by {rewind.who}: {rewind.reason}"
    yield f"{rewind.number:>4}  {moment(rewind.planned_at)}  {state:<10}{request}"
    yield f"      {rewind.failure or rewind.message}"
    if is_dead:
        remedy = f"spark-submit jobs/rewind.py --number {rewind.number} ends it, or action give up"
        yield f"      its flows stay stopped: {remedy}"
    yield from _stopped_line(rewind)


def show_rewind(
    table: TableName,
    to: Annotated[str, typer.Argument(metavar="MOMENT", help="ISO 8601: 2026-03-01T12:00:00Z; UTC without a zone.")],
    as_json: Json = False,
) -> None:
    """Preview a rewind of a table, and of all tables below it, to a moment. Nothing is written."""
    tables = catalog.load()
    plan = rewind_plan.plan(database.connect(settings().control_url), tables.table(table), tables, to)
    show(as_json, asdict(plan), plan.lines(), default=str)
    if plan.refusals:
        raise UsageError(f"{plan.table} cannot be rewound to {to}: the lines above say why")


def show_rebuild(flow: FlowName, as_json: Json = False) -> None:
    """Preview what `reset checkpoint` of a flow would do now. Nothing is written."""
    preview = reset.plan(catalog.load().flow(flow))
    show(as_json, asdict(preview), reset_lines(preview))


def reset_lines(preview: ResetPreview) -> Iterator[str]:
    """Describes what a reset would do, and ends with the command that does it."""
    if preview.after is None:
        where = "at the beginning of its source, as its table holds no batch of it"
    else:
        where = f"behind {preview.after}, version {preview.version} of its table, at {json.dumps(preview.offset)}"
    yield f"{preview.flow}: a reset would begin generation {preview.generation} {where}"
    if preview.files:
        yield f"  {preview.files:,} files count as read"
    yield from (f"  {name} was planned and not written: its rows are read again" for name in preview.abandons)
    yield from (f"  {warning}" for warning in preview.warnings)
    configuration = json.dumps({"flow": preview.flow, "action": "reset checkpoint", "reason": "..."})
    yield f"  nothing was written; to do it: airflow dags trigger control.stream -c '{configuration}'"


def show_plan(table: TableName, as_json: Json = False) -> None:
    """Preview what a window of a table would do now, and who holds VACUUM back."""
    tables = catalog.load()
    owner = tables.owner(table)
    plan = table_survey.plan_window(database.connect(settings().control_url), owner, tables)
    show(as_json, [_survey_as_json(survey) for survey in plan.surveys], plan.lines(), f"{owner.name} is not stored yet")


def _survey_as_json(survey: table_survey.TableSurvey) -> dict[str, object]:
    return {
        "table": survey.name,
        "steps": [asdict(step) for step in survey.plan.steps],
        "retention_seconds": survey.retention_seconds,
        "held_by": asdict(survey.held),
    }


def hold(
    table: TableName,
    version: Annotated[int, typer.Option(metavar="N", help="The oldest version that the reader needs.")],
    hours: Annotated[float, typer.Option(metavar="H", help="For so long from now on.")],
    name: Reader,
    reason: Why = "",
) -> None:
    """Keep a version of a table, and every later one, for a reader. Repeat it to move the hold."""
    # A hold on a misspelled table would go unnoticed until the files are deleted.
    catalog.load().owner(table)
    if not 0 < hours < math.inf:
        raise UsageError(f"--hours is {hours:g}: set it to a number above 0")
    log = DeltaLog(locations.table_path(table))
    if version not in log.versions:
        raise UsageError(
            f"--version is {version}, and the log of {table} holds {log.versions[0]} to {log.newest}: name one of these"
        )
    engine = database.connect(settings().control_url)
    vacuum_holds.register(engine, name, table, version, hours, system_user(), reason)
    print(f"{table} keeps version {version} and every later one for {name}, for {hours:g} h from now on")


def release_hold(table: TableName, name: Reader, reason: Why = "") -> None:
    """Keep nothing of a table for the reader any more."""
    engine = database.connect(settings().control_url)
    if vacuum_holds.unregister(engine, name, table, system_user(), reason):
        print(f"{table} keeps nothing for {name} any more")
    else:
        print(f"nothing done, {table} keeps nothing for {name}")
