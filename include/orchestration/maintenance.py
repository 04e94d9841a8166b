"""What the DAGs `maintain.<table>` do besides their window: plan it before, look at it afterwards."""

import time

from airflow.sdk import Param
from airflow.sdk.exceptions import AirflowFailException
from sqlalchemy import Engine, select

from include import catalog
from include.control import incidents, lease
from include.control.jobs import windows
from include.control.jobs.windows import Shape, Window
from include.control.store import database
from include.control.store.schema import runs
from include.maintenance import table_state, vacuum_guard
from include.maintenance.table_state import Survey
from include.orchestration import in_driver, notify
from include.readers.delta_log import Commit, Log
from include.settings import settings
from include.spec import Table

MOVING_SECONDS = 60
FORM = {
    "where": in_driver.WHERE,
    "dry_run": Param(False, type="boolean", description="say what would be done, and do nothing"),
}


def plan(name: str, who: str, dry_run: bool) -> int | None:
    """The number of the window that is now planned; None where nothing is worth it, or nothing is to be done."""
    engine = database.connect(settings().control_url)
    table = catalog.load().table(name)
    surveys = table_state.look(engine, table, catalog.load())
    for found in surveys:
        print("\n".join(found.lines()))
    if dry_run:
        for found in surveys:
            for file in found.would_delete(time.time()):
                print(f"would delete {found.name}/{file.path} ({file.bytes:,} bytes)")
        return None
    _tell_who_holds_back(engine, table, surveys)
    is_worth_it = table_state.is_worth_it(engine, table, surveys)
    number = windows.plan(engine, name, who, table_state.why(surveys), is_worth_it)
    return number if is_worth_it else None


def _tell_who_holds_back(engine: Engine, table: Table, surveys: list[Survey]) -> None:
    for found in surveys:
        # Who cannot say since when has stood there for too long.
        hours = (time.time() - (found.held.since or 0)) / 3600
        is_held = found.retention_seconds > table.maintain.retention_seconds
        is_promise = found.held.name.startswith(vacuum_guard.PROMISE)
        is_too_long = is_held and not is_promise and hours > table.maintain.most_held_hours
        sentence = (
            f"{found.held.name} has needed version {found.held.version} for {hours:,.0f} h, longer than "
            f"most_held_hours={table.maintain.most_held_hours:g}, so VACUUM keeps all that was deleted since"
        )
        with database.transaction(engine) as connection:
            if is_too_long:
                incidents.begin(connection, f"vacuum {found.name}", "HELD BACK", sentence, "")
            else:
                incidents.end(connection, f"vacuum {found.name}")


def verify(name: str, number: int) -> None:
    """Raises AirflowFailException, and tells people, where the window did not do what it should have."""
    engine = database.connect(settings().control_url)
    table = catalog.load().table(name)
    window = windows.find(engine, number)
    target = f"window {name}"
    wrong = _what_is_wrong(engine, table, window)
    with database.transaction(engine) as connection:
        # Each failure is news: the next one may be another.
        incidents.end(connection, target)
        if wrong:
            incidents.begin(connection, target, "WINDOW FAILED", wrong)
    notify.tell_all(engine)
    if wrong:
        raise AirflowFailException(f"{name}: {wrong}")


def _what_is_wrong(engine: Engine, table: Table, window: Window | None) -> str | None:
    if window is None or window.state != "done" or not window.after:
        return f"its window did not finish: {window.why if window else 'nobody planned it'}"
    if window.before is None:
        return None
    if not table.merges_in_windows and (wrong := _what_has_changed(table, window.before, window.after)):
        return wrong
    log = Log(settings().table_path(table.name))
    inside = [log.commit(one) for one in log.versions if window.before.version < one <= window.after.version]
    if strangers := [commit for commit in inside if not _is_own(commit, table, window)]:
        what = ", ".join(f"version {commit.version} ({commit.operation})" for commit in strangers)
        return f"somebody else wrote it during its window: {what}; keep that program from it"
    return _stands_still(engine, table, window)


def _what_has_changed(table: Table, before: Shape, after: Shape) -> str | None:
    """A window without a merge leaves the rows as they were, and no more files, unless it clusters large ones."""
    if before.rows is not None and after.rows is not None and before.rows != after.rows:
        return f"it held {before.rows:,} rows before its window and {after.rows:,} after it"
    if before.files < after.files and not table.cluster_by:
        return f"it had {before.files:,} files before its window and {after.files:,} after it"
    return None


def _is_own(commit: Commit, table: Table, window: Window) -> bool:
    is_of_a_flow = commit.metadata.get("flow") in [flow.flow for flow in table.flows]
    return is_of_a_flow or commit.metadata.get("window") == window.number


def _stands_still(engine: Engine, table: Table, window: Window) -> str | None:
    """Its flows show a sign of life within a minute of the window's end, where somebody runs them."""
    deadline = time.monotonic() + MOVING_SECONDS
    while not all(_moves(engine, flow.flow, window) for flow in table.flows):
        if time.monotonic() > deadline:
            return f"its flow has not moved for {MOVING_SECONDS} s since its window was closed"
        time.sleep(1)
    return None


def _moves(engine: Engine, flow: str, window: Window) -> bool:
    with database.reading(engine) as connection:
        is_held = flow in lease.alive(connection)
        sign_at = connection.execute(select(runs.c.sign_at).where(runs.c.flow == flow)).scalar_one_or_none()
    # One that nobody runs is the supervisor's business.
    return not is_held or bool(sign_at and sign_at > (window.closed_at or 0))
