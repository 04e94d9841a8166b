"""The tasks of the DAGs `backfill`, `full_refresh`, `rewind`, `replay` and `refresh` before Spark starts.

They plan the job, and check its approval.
"""

from collections.abc import Callable
from typing import Any

from airflow.sdk import Param
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from sqlalchemy import Engine

from include import catalog, logs
from include.airflow import in_driver
from include.airflow.approvals import evaluate_approval
from include.airflow.forms import MOST_CHARACTERS, OPTIONAL_TEXT, TEXT, checked
from include.airflow.run import Run
from include.control.jobs import backfills, rewinds, store
from include.control.jobs.rewinds import Rewind
from include.control.requesters import BACKFILL, REFRESH, REPLAY
from include.control.store import audit, database
from include.errors import DeclarationError, SluiceError, UsageError
from include.flows import refreshes
from include.lake import locations
from include.monitoring import first_load
from include.project import ranges, replays
from include.project.ranges import Slice
from include.recovery import rewind_plan
from include.recovery.backfill import preview
from include.settings import settings
from include.spec import Table

MOMENT = "ISO 8601, such as 2026-03-01 or 2026-03-01T12:00:00+01:00; UTC where it names no zone"
BACKFILL_FORM = {
    "from": Param(None, type=["null", "string"], maxLength=40, description=f"where the range begins: {MOMENT}"),
    "to": Param(None, type=["null", "string"], maxLength=40, description="before which it ends"),
    "where": in_driver.WHERE_PARAM,
    "reason": Param("", **OPTIONAL_TEXT, description="for whoever reads the audit"),
    "dry_run": Param(False, type="boolean", description="say what would be done, and do nothing"),
}


def plan_backfill(run: Run) -> dict[str, str]:
    """Returns the range as the job takes it, and records who asked for it. Raises as `_preview`."""
    name, form, day = run.table, checked(run.form, BACKFILL_FORM), run.day
    planned: dict[str, str] = {}

    def range_of(table: Table) -> Slice:
        begin, end = day if day and table.sliced_by else (form["from"], form["to"])
        planned.update({"from": begin or "", "to": end or ""})
        return ranges.parse_slice(table, begin, end)

    _preview(name, form, range_of)
    with database.transaction(database.connect(settings().control_url)) as connection:
        result = f"asked for as {run.id}: {range_of(catalog.load().table(name))}"
        audit.record(connection, run.requester or "unknown", BACKFILL, name, form["reason"], result)
    return planned


def _preview(name: str, form: dict[str, Any], range_of: Callable[[Table], Slice], alone: bool = False) -> list[str]:
    """Returns and prints what a backfill would do. form: of the trigger.

    Raises AirflowFailException if the table cannot be recomputed, AirflowSkipException with `dry_run`, and Unreachable.
    """
    tables = catalog.load()
    try:
        table = tables.current_definition(name)
        range_ = range_of(table)
        if not locations.is_stored(name):
            raise UsageError(f"{name} is not stored yet: start its flow; there is nothing to backfill")
        lines = list(preview(table, tables, range_, alone))
    except (UsageError, DeclarationError) as error:
        raise AirflowFailException(str(error)) from error
    logs.info("\n".join(lines))
    if form["dry_run"]:
        raise AirflowSkipException("it was only to say what would be done")
    return lines


def ask_for_backfill(engine: Engine, table: Table, driver: str, planned: dict[str, str], run_id: str) -> int | str:
    """Requests a backfill of the range that `plan_backfill` has returned from the driver of the table's flow."""
    range_ = ranges.parse_slice(table, planned["from"] or None, planned["to"] or None)
    number = backfills.request(engine, table.name, range_, run_id, driver)
    return f"driver '{driver}' does not run" if number is None else number


FULL_REFRESH = "full refresh"
FULL_REFRESH_FORM = {
    "reason": Param(**TEXT, description="for whoever approves it, and whoever reads the audit"),
    "alone": Param(False, type="boolean", description="leave the tables below as they are: they are STALE then"),
    "dry_run": Param(False, type="boolean", description="say what would be done, and do nothing"),
}


def plan_full_refresh(name: str, form: dict[str, Any]) -> str:
    """Returns in Markdown what will be done. Raises as `_preview`."""
    form = checked(form, FULL_REFRESH_FORM)
    lines = _preview(name, form, lambda table: ranges.parse_slice(table, None, None, as_a_whole=True), form["alone"])
    return "\n".join(f"{'  ' * line.startswith('  ')}- {line.strip()}" for line in lines) + f"\n\nWhy: {form['reason']}"


def full_refresh_arguments(
    name: str, form: dict[str, Any], requester: str | None, answer: dict[str, Any] | None, run_id: str, engine: Engine
) -> list[str]:
    """The arguments of the job. requester: the user who triggered the run. answer: of the approver.

    Raises AirflowSkipException if nobody has approved it, so that the following tasks are skipped.
    """
    decision = evaluate_approval(answer, requester)
    result = f"is begun, {decision.message}" if decision.is_approved else f"nothing done, {decision.message}"
    with database.transaction(engine) as connection:
        words, approver = (FULL_REFRESH, name, form["reason"], result), decision.by if decision.is_approved else None
        audit.record(connection, requester or "unknown", *words, decision.is_approved, approver)
    if not decision.is_approved:
        raise AirflowSkipException(f"{name}: {result}")
    return ["--table", name, "--full", *["--alone"] * form["alone"], "--run", run_id]


REWOUND_TABLES = [name for name, table in catalog.load().tables.items() if not table.is_view]
REWIND_FORM = {
    "table": Param(type="string", enum=REWOUND_TABLES, description="the table to rewind, with all below it"),
    "to": Param(
        type="string",
        minLength=1,
        maxLength=40,
        description="ISO 8601, such as 2026-03-01T12:00:00Z; UTC without a zone",
    ),
    "reason": Param(**TEXT, description="for whoever reads the audit"),
}


def plan_rewind(form: dict[str, Any], requester: str | None) -> tuple[int, str]:
    """Returns the number of the stored rewind, and in Markdown what it would do.

    Raises AirflowFailException if it is refused, and AirflowSkipException if nothing has to be undone.
    """
    form, tables, engine = checked(form, REWIND_FORM), catalog.load(), database.connect(settings().control_url)
    try:
        draft = rewind_plan.plan(engine, tables.table(form["table"]), tables, form["to"])
    except SluiceError as error:
        raise AirflowFailException(str(error)) from error
    logs.info("\n".join(draft.lines()))
    if draft.refusals:
        raise AirflowFailException(f"{draft.table} is not rewound to {form['to']}: {'; '.join(draft.refusals)}")
    if not draft.steps:
        raise AirflowSkipException(draft.lines()[0])
    moment = draft.moment.isoformat()
    stored = rewinds.plan(engine, draft.table, moment, draft.cut, draft.views, requester or "unknown", form["reason"])
    lines = [f"- {line.strip()}" for line in draft.lines()]
    return stored.number, "\n".join([*lines, "", f"Asked for by {stored.who}: {stored.reason}"])


def require_approved_rewind(number: int, answer: dict[str, Any] | None) -> None:
    """Raises AirflowSkipException if nobody has approved it, so that the following tasks are skipped."""
    engine = database.connect(settings().control_url)
    stored = store.get(engine, Rewind, number)
    decision = evaluate_approval(answer, stored.who)
    if not decision.is_approved:
        if not stored.is_begun and stored.ended_at is None:
            rewinds.give_up(engine, stored, decision.message)
        raise AirflowSkipException(f"rewind {number}: nothing done, {decision.message}")
    store.approve(engine, stored, decision.by, decision.reason)


REPLAYED_TABLES = [name for name, table in catalog.load().tables.items() if replays.refusal(table) is None]
REPLAY_FORM = {
    "table": Param(type="string", enum=REPLAYED_TABLES, description="the table to move quarantined rows into"),
    "rule": Param(
        None,
        type=["null", "string"],
        maxLength=MOST_CHARACTERS,
        description="only rows that broke this rule; late rows need it",
    ),
    "reason": Param(**TEXT, description="for whoever reads the audit"),
}


def plan_replay(form: dict[str, Any], requester: str | None) -> None:
    """Writes the audit. Raises AirflowFailException if no row can be moved."""
    form = checked(form, REPLAY_FORM)
    table = catalog.load().table(form["table"])
    if not locations.is_stored(table.quarantine):
        raise AirflowFailException(replays.no_quarantine(table))
    what = f"rows that broke '{form['rule']}'" if form["rule"] else "rows of all rules but late ones"
    with database.transaction(database.connect(settings().control_url)) as connection:
        audit.record(connection, requester or "unknown", REPLAY, table.name, form["reason"], f"begins with {what}")


def replay_arguments(form: dict[str, Any], run_id: str) -> list[str]:
    return ["--replay-quarantine", form["table"], *(["--rule", form["rule"]] if form["rule"] else []), "--run", run_id]


REFRESH_FORM = {"reason": Param("", **OPTIONAL_TEXT, description="for whoever reads the audit")}


def begin_refresh(run: Run) -> None:
    """Writes into the audit who asked for the refresh of a view, unless that was a schedule.

    Skips it while a source table is not stored yet, or waits for its first load, which is no failure of the view.
    Raises AirflowSkipException.
    """
    tables, form = catalog.load(), checked(run.form, REFRESH_FORM)
    view = tables.table(run.table)
    if run.requester:
        with database.transaction(database.connect(settings().control_url)) as connection:
            words = run.requester, REFRESH, view.name, form["reason"], f"asked for as {run.id}"
            # The task may be tried again.
            if not audit.is_recorded(connection, *words):
                audit.record(connection, *words)
    if missing := refreshes.missing_sources([view]).get(view.name):
        raise AirflowSkipException(refreshes.not_refreshed_words(view, missing))
    if awaited := first_load.awaited_by_view(database.connect(settings().control_url), tables, view):
        raise AirflowSkipException(refreshes.not_loaded_words(view, awaited))
