"""The commands `windows`, `plan`, `hold` and `release-hold`: the calendar, a plan, and versions kept for a reader."""

import argparse
import json
import math
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from include import catalog
from include.control import vacuum_holds
from include.control.jobs import windows
from include.control.jobs.windows import Window
from include.control.store import database
from include.errors import UsageError
from include.maintenance import table_state
from include.readers.delta_log import DeltaLog
from include.settings import settings


def add(commands: Any) -> None:
    """Adds the commands. commands: what `add_subparsers` returned."""
    calendar = commands.add_parser("windows", help="past, running, planned and skipped windows, newest first")
    calendar.add_argument("table", nargs="?", help="of this table only")
    calendar.add_argument("--limit", type=int, default=50, metavar="N", help="at most so many (50)")
    calendar.set_defaults(run=_windows)
    plan = commands.add_parser("plan", help="what a window would do now, and who holds VACUUM back")
    plan.set_defaults(run=_plan)
    for parser in (calendar, plan):
        parser.add_argument("--json", action="store_true", help="for programs")
    hold = commands.add_parser("hold", help="keep a version, and every later one, for a reader; again, it moves")
    hold.add_argument("--version", type=int, required=True, metavar="N", help="the oldest version the reader needs")
    hold.add_argument("--hours", type=float, required=True, metavar="H", help="for so long from now on")
    hold.set_defaults(run=_hold)
    release = commands.add_parser("release-hold", help="the reader needs them no more")
    release.set_defaults(run=_release_hold)
    for parser in (plan, hold, release):
        parser.add_argument("table")
    for parser in (hold, release):
        parser.add_argument("--name", required=True, metavar="WHO", help="the reader, by a name of its own")


def _plan(arguments: argparse.Namespace) -> None:
    table = catalog.load().owner(arguments.table)
    surveys = table_state.survey(database.connect(settings().control_url), table, catalog.load())
    if arguments.json:
        print(json.dumps([_as_json(survey) for survey in surveys], indent=2))
        return
    print("\n".join(line for survey in surveys for line in survey.lines()) or f"{table.name} is not stored yet")


def _as_json(survey: table_state.TableSurvey) -> dict[str, object]:
    return {
        "table": survey.name,
        "steps": [asdict(step) for step in survey.plan.steps],
        "retention_seconds": survey.retention_seconds,
        "held_by": asdict(survey.held),
    }


def _hold(arguments: argparse.Namespace) -> None:
    # A hold on a misspelled table would go unnoticed until the files are deleted.
    catalog.load().owner(arguments.table)
    if not 0 < arguments.hours < math.inf:
        raise UsageError(f"--hours is {arguments.hours:g}: set it to a number above 0")
    log = DeltaLog(settings().table_path(arguments.table))
    if arguments.version not in log.versions:
        raise UsageError(
            f"--version is {arguments.version}, and the log of {arguments.table} holds {log.versions[0]} to "
            f"{log.newest}: name one of these"
        )
    engine = database.connect(settings().control_url)
    vacuum_holds.register(engine, arguments.name, arguments.table, arguments.version, arguments.hours)
    print(
        f"{arguments.table} keeps version {arguments.version} and every later one for {arguments.name}, "
        f"for {arguments.hours:g} h from now on"
    )


def _release_hold(arguments: argparse.Namespace) -> None:
    engine = database.connect(settings().control_url)
    if vacuum_holds.unregister(engine, arguments.name, arguments.table):
        print(f"{arguments.table} keeps nothing for {arguments.name} any more")
    else:
        print(f"nothing done, {arguments.table} keeps nothing for {arguments.name}")


def _windows(arguments: argparse.Namespace) -> None:
    engine = database.connect(settings().control_url)
    listed = windows.calendar(engine, arguments.table, arguments.limit)
    if arguments.json:
        print(json.dumps([asdict(window) for window in listed], indent=2))
        return
    print("\n".join(_line(window) for window in listed) or "no window was planned yet")


def _line(window: Window) -> str:
    begun_at = datetime.fromtimestamp(window.opened_at or window.planned_at, UTC)
    lines = [f"{window.number:>4}  {begun_at:%Y-%m-%d %H:%M:%S}Z  {window.state:<8}{window.table}  by {window.who}"]
    lines.append(f"      {window.why}")
    if window.state == "failed" and window.step:
        lines.append(f"      ended at: {window.step}")
    if window.before and window.after:
        before, after = window.before, window.after
        lines.append(
            f"      files {before.files:,} -> {after.files:,}, MB {before.bytes / 1e6:,.1f} -> "
            f"{after.bytes / 1e6:,.1f}, small {before.small_ratio:.0%} -> {after.small_ratio:.0%}, "
            f"open for {(window.closed_at or 0) - (window.opened_at or 0):.1f} s"
        )
    lines += [
        f"      {pause.flow} waited {pause.seconds:.1f} s, {pause.beyond_seconds:.1f} s of that "
        f"while no window was open"
        for pause in window.pauses
    ]
    return "\n".join(lines)
