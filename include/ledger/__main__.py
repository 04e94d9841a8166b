"""Looks, without a JVM, at what was done to the tables and what is to be done, and keeps old versions for a reader:

python -m include.ledger status [--json]
python -m include.ledger graph [--json]
python -m include.ledger metrics [--port N]
python -m include.ledger mirror
python -m include.ledger lineage [--url URL]
python -m include.ledger windows [TABLE] [--json]
python -m include.ledger plan TABLE [--json]
python -m include.ledger expectations TABLE [--limit N] [--json]
python -m include.ledger inspect TABLE [--flow FLOW] [--limit N] [--json]
python -m include.ledger verify [TABLE ...] [--json]
python -m include.ledger explain TABLE --version N | TABLE --file NAME | --topic T --partition P --offset O [--json]
python -m include.ledger rebuild FLOW [--json]
python -m include.ledger progress FLOW [--limit N] [--json]
python -m include.ledger gather
python -m include.ledger hold TABLE --version N --hours H --name WHO
python -m include.ledger release-hold TABLE --name WHO
"""

import argparse
import json
import math
from dataclasses import asdict
from datetime import UTC, datetime

from include import catalog
from include.control import database, holds, windows
from include.control.windows import Window
from include.errors import UsageError, report
from include.ledger import (
    expectations,
    explanation,
    graph,
    inspection,
    metrics,
    mirror,
    rebuild,
    reports,
    status,
    survey,
    telling,
    verification,
)
from include.ledger.expectations import Batch
from include.ledger.log import Log
from include.settings import settings
from include.spec import Table

COMMANDS = (status, graph, inspection, verification, explanation, rebuild, reports, metrics, mirror, telling)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m include.ledger", description=__doc__, formatter_class=raw)
    commands = parser.add_subparsers(required=True)
    for module in COMMANDS:
        module.add(commands)
    calendar = commands.add_parser("windows", help="past, running, planned and skipped windows, newest first")
    calendar.add_argument("table", nargs="?", help="of this table only")
    calendar.add_argument("--limit", type=int, default=50, metavar="N", help="at most so many (50)")
    calendar.set_defaults(run=_windows)
    plan = commands.add_parser("plan", help="what a window would do now, and who holds VACUUM back")
    plan.set_defaults(run=_plan)
    rules = commands.add_parser(
        "expectations", help="how many rows broke each rule, and what became of each batch's rows"
    )
    rules.add_argument("--limit", type=int, default=20, metavar="N", help="of the newest N batches (20)")
    rules.set_defaults(run=_expectations)
    for one in (calendar, plan, rules):
        one.add_argument("--json", action="store_true", help="for programs")
    hold = commands.add_parser("hold", help="keep a version, and every later one, for a reader; again, it moves")
    hold.add_argument("--version", type=int, required=True, metavar="N", help="the oldest version the reader needs")
    hold.add_argument("--hours", type=float, required=True, metavar="H", help="for so long from now on")
    hold.set_defaults(run=_hold)
    release = commands.add_parser("release-hold", help="the reader needs them no more")
    release.set_defaults(run=_release_hold)
    for one in (plan, rules, hold, release):
        one.add_argument("table")
    for one in (hold, release):
        one.add_argument("--name", required=True, metavar="WHO", help="the reader, by a name of its own")
    arguments = parser.parse_args()
    arguments.run(arguments)


def _table(name: str) -> Table:
    """The table of this name, or the one whose quarantine it is. Raises UsageError."""
    tables = catalog.load()
    owner = next((one for one in tables.tables.values() if one.has_quarantine and one.quarantine == name), None)
    return owner or tables.table(name)


def _plan(arguments: argparse.Namespace) -> None:
    table = _table(arguments.table)
    found = survey.look(database.connect(settings().control_url), table, catalog.load())
    if arguments.json:
        print(json.dumps([_as_json(one) for one in found], indent=2))
        return
    print("\n".join(line for one in found for line in one.lines()) or f"{table.name} is not stored yet")


def _as_json(found: survey.Survey) -> dict[str, object]:
    return {
        "table": found.name,
        "steps": [asdict(step) for step in found.plan.steps],
        "retention_seconds": found.retention_seconds,
        "held_by": asdict(found.held),
    }


def _expectations(arguments: argparse.Namespace) -> None:
    table = _table(arguments.table)
    batches = expectations.batches(table, arguments.limit)
    rules = expectations.rules(table, batches)
    if arguments.json:
        judged = [{**asdict(rule), "pass_rate": rule.pass_rate} for rule in rules]
        print(json.dumps({"table": table.name, "rules": judged, "batches": [asdict(one) for one in batches]}, indent=2))
        return
    for rule in rules:
        rate = "not judged yet" if rule.pass_rate is None else f"{rule.pass_rate:.2%} of {rule.rows:,} rows pass"
        print(f"{rule.name} ({rule.otherwise or 'declared no more'}): {rate}, {rule.broke:,} broke it")
    print("\n".join(_batch_line(one) for one in batches) or f"no batch of {table.name} has counted its rows yet")


def _batch_line(batch: Batch) -> str:
    at = datetime.fromtimestamp(batch.at, UTC)
    broke = ", ".join(f"{count:,} broke '{name}'" for name, count in batch.broke.items() if count)
    return (
        f"{batch.flow} {batch.generation}/{batch.batch}  {at:%Y-%m-%d %H:%M:%S}Z  version {batch.version}: "
        f"{batch.read:,} read = {batch.written:,} written + {batch.duplicates:,} duplicates + "
        f"{batch.quarantined:,} quarantined + {batch.dropped:,} dropped{'; ' if broke else ''}{broke}"
    )


def _hold(arguments: argparse.Namespace) -> None:
    # A name that is wrong by a letter would hold nothing, and nobody would notice before the files are gone.
    _table(arguments.table)
    if not 0 < arguments.hours < math.inf:
        raise UsageError(f"--hours is {arguments.hours:g}: set it to a number above 0")
    log = Log(settings().table_path(arguments.table))
    if arguments.version not in log.versions:
        raise UsageError(
            f"--version is {arguments.version}, and the log of {arguments.table} holds {log.versions[0]} to "
            f"{log.newest}: name one of these"
        )
    engine = database.connect(settings().control_url)
    holds.register(engine, arguments.name, arguments.table, arguments.version, arguments.hours)
    print(
        f"{arguments.table} keeps version {arguments.version} and every later one for {arguments.name}, "
        f"for {arguments.hours:g} h from now on"
    )


def _release_hold(arguments: argparse.Namespace) -> None:
    engine = database.connect(settings().control_url)
    if holds.unregister(engine, arguments.name, arguments.table):
        print(f"{arguments.table} keeps nothing for {arguments.name} any more")
    else:
        print(f"nothing done, {arguments.table} keeps nothing for {arguments.name}")


def _windows(arguments: argparse.Namespace) -> None:
    engine = database.connect(settings().control_url)
    found = windows.calendar(engine, arguments.table, arguments.limit)
    if arguments.json:
        print(json.dumps([asdict(one) for one in found], indent=2))
        return
    print("\n".join(_line(one) for one in found) or "no window was planned yet")


def _line(window: Window) -> str:
    at = datetime.fromtimestamp(window.opened_at or window.planned_at, UTC)
    lines = [f"{window.number:>4}  {at:%Y-%m-%d %H:%M:%S}Z  {window.state:<8}{window.table}  by {window.who}"]
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
        f"      {one.flow} waited {one.seconds:.1f} s, {one.beyond_seconds:.1f} s of that while no window was open"
        for one in window.pauses
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    report(main)
