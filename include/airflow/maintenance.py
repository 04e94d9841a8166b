"""The tasks of the DAG `maintain` before and after their window: plan and verify."""

import time
from typing import Any

from airflow.sdk import Param
from airflow.sdk.exceptions import AirflowFailException
from sqlalchemy import Engine, select

from include import catalog, logs
from include.airflow import in_driver
from include.airflow.forms import OPTIONAL_TEXT, checked
from include.airflow.supervisor import notify
from include.control.flows import incidents, queue
from include.control.flows.alarms import AlarmKind
from include.control.jobs import store, windows
from include.control.jobs.store import DONE
from include.control.jobs.windows import TableSize, Window
from include.control.leases import lease
from include.control.requesters import MAINTAIN
from include.control.store import audit, database, job_id
from include.control.store.schema import runs
from include.delta.delta_log import Commit, DeltaLog
from include.errors import UsageError
from include.lake import locations
from include.maintenance import table_survey
from include.maintenance.table_survey import TableSurvey
from include.settings import settings
from include.spec import Table

MOVING_SECONDS = 60
# A larger rewrite would occupy the driver's cores for minutes and delay its streams.
MOST_BYTES_REWRITTEN = 512 * 2**20
FORM = {
    "where": in_driver.WHERE_PARAM,
    "reason": Param("", **OPTIONAL_TEXT, description="for whoever reads the audit"),
    "dry_run": Param(False, type="boolean", description="say what would be done, and do nothing"),
}


def plan(name: str, requester: str | None, form: dict[str, Any]) -> int | None:
    """Plan a window. Returns its number; None if it is not worth it, or with `dry_run`.

    requester: the person whom the audit names; None: a schedule.
    """
    engine, form = database.connect(settings().control_url), checked(form, FORM)
    table, dry_run = catalog.load().table(name), form["dry_run"]
    with database.reading(engine) as connection:
        is_open = name in windows.open_windows(connection, [name])
    if is_open:
        logs.info("a window of it is open, and does what is worth it", name)
        _record(engine, name, requester, form, "nothing done, a window of it is open", has_effect=False)
        return None
    window_plan = table_survey.plan_window(engine, table, catalog.load())
    logs.info("\n".join([*window_plan.lines(), *(window_plan.deletions() if dry_run else ())]))
    if dry_run:
        return None
    _settle_held_back(engine, table, window_plan.surveys)
    number = window_plan.store(engine, requester or audit.SCHEDULE)
    result = "nothing done, nothing is worth it" if number is None else f"window {number} is planned"
    _record(engine, name, requester, form, result, has_effect=number is not None)
    return number


def _record(
    engine: Engine, table: str, requester: str | None, form: dict[str, Any], result: str, has_effect: bool
) -> None:
    """Write the request of a person into the audit. Schedules have the list of jobs, which is long enough."""
    if requester and not form["dry_run"]:
        with database.transaction(engine) as connection:
            audit.record(connection, requester, MAINTAIN, table, form["reason"], result, has_effect)


def ask_for_window(engine: Engine, table: Table, driver: str, number: int, _run_id: str) -> int | str:
    """Requests the planned window from the driver of the table's flow, unless it would rewrite too much."""
    bytes_rewritten = store.get(engine, Window, number).bytes_rewritten
    if bytes_rewritten > MOST_BYTES_REWRITTEN:
        return (
            f"a driver rewrites {MOST_BYTES_REWRITTEN / 2**20:.0f} MB at most, "
            f"and this is {bytes_rewritten / 2**20:,.0f} MB"
        )
    is_asked = queue.request(engine, job_id.window(number), driver)
    return number if is_asked else f"driver '{driver}' does not run"


def _settle_held_back(engine: Engine, table: Table, surveys: list[TableSurvey]) -> None:
    for survey in surveys:
        # An unknown begin counts as too long.
        hours = (time.time() - (survey.held.since or 0)) / 3600
        is_held = survey.retention_seconds > table.maintain.retention_seconds
        is_too_long = is_held and not survey.held.is_declared and hours > table.maintain.most_held_hours
        reason = (
            f"{survey.held.name} has needed version {survey.held.version} for {hours:,.0f} h, longer than "
            f"most_held_hours={table.maintain.most_held_hours:g}, so VACUUM keeps all that was deleted since"
        )
        with database.transaction(engine) as connection:
            if is_too_long:
                incidents.begin(connection, survey.name, AlarmKind.HELD_BACK, reason)
            else:
                incidents.end(connection, AlarmKind.HELD_BACK.target(survey.name))


def verify(name: str, number: int | None) -> None:
    """Raises AirflowFailException, and notifies, if the window did not do what it should have.

    number: None if its task has planned none, because it failed or was ended.
    """
    engine = database.connect(settings().control_url)
    table = catalog.load().table(name)
    failure: str | None = "no window could be planned: read the log of its task"
    if number is not None:
        try:
            failure = _find_failure(engine, table, store.get(engine, Window, number))
        except UsageError as error:
            failure = f"its window did not finish: {error}"
    with database.transaction(engine) as connection:
        # End the previous incident, because each failure is news.
        incidents.end(connection, AlarmKind.WINDOW_FAILED.target(name))
        if failure:
            incidents.begin(connection, name, AlarmKind.WINDOW_FAILED, failure)
    notify.notify_all(engine)
    if failure:
        raise AirflowFailException(f"{name}: {failure}")


def _find_failure(engine: Engine, table: Table, window: Window) -> str | None:
    if window.state != DONE or not window.after:
        return f"its window did not finish: {window.reason}"
    if window.before is None:
        return None
    if not table.merges_in_windows and (failure := _find_change(table, window.before, window.after)):
        return failure
    log = DeltaLog(locations.table_path(table.name))
    inside = [
        log.commit(version) for version in log.versions if window.before.version < version <= window.after.version
    ]
    if foreign_commits := [commit for commit in inside if not _is_own(commit, table, window)]:
        descriptions = ", ".join(f"version {commit.version} ({commit.operation})" for commit in foreign_commits)
        return f"somebody else wrote it during its window: {descriptions}; keep that program from it"
    return _find_stuck_flow(engine, table, window)


def _find_change(table: Table, before: TableSize, after: TableSize) -> str | None:
    """A window without a merge keeps the number of rows, and adds no files unless it clusters the table."""
    if before.rows is not None and after.rows is not None and before.rows != after.rows:
        return f"it held {before.rows:,} rows before its window and {after.rows:,} after it"
    if before.files < after.files and not table.cluster_by:
        return f"it had {before.files:,} files before its window and {after.files:,} after it"
    return None


def _is_own(commit: Commit, table: Table, window: Window) -> bool:
    is_flow_commit = commit.metadata.get("flow") in [flow.flow for flow in table.flows]
    return is_flow_commit or commit.metadata.get("window") == window.number


def _find_stuck_flow(engine: Engine, table: Table, window: Window) -> str | None:
    """Waits until each flow has reported progress since the window's end, at most `MOVING_SECONDS`."""
    deadline = time.monotonic() + MOVING_SECONDS
    while not all(_has_moved(engine, flow.flow, window) for flow in table.flows):
        if time.monotonic() > deadline:
            return f"its flow has not moved for {MOVING_SECONDS} s since its window was closed"
        time.sleep(1)
    return None


def _has_moved(engine: Engine, flow: str, window: Window) -> bool:
    with database.reading(engine) as connection:
        is_held = flow in lease.alive(connection)
        sign_at = connection.execute(select(runs.c.sign_at).where(runs.c.flow == flow)).scalar_one_or_none()
    # A flow that does not run is left to the supervisor.
    return not is_held or bool(sign_at and sign_at > (window.ended_at or 0))
