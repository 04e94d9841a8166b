"""The commands `rewind` and `rewinds`: what a rewind would do, and which rewinds were planned or done."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from include import catalog
from include.control.jobs import rewinds
from include.control.jobs.rewinds import Rewind
from include.control.store import database
from include.errors import UsageError
from include.recovery import rewind_plan
from include.settings import settings


def add(commands: Any) -> None:
    preview = commands.add_parser("rewind", help="what putting a table and all below back to a moment would do")
    preview.add_argument("table")
    preview.add_argument("moment", help="ISO 8601, such as 2026-03-01T12:00:00Z; UTC without a zone")
    preview.add_argument("--json", action="store_true", help="for programs")
    preview.set_defaults(run=_plan)
    listing = commands.add_parser("rewinds", help="rewinds that were planned or done, and how far one has come")
    listing.add_argument("--limit", type=int, default=20, metavar="N", help="at most so many (20)")
    listing.add_argument("--json", action="store_true", help="for programs")
    listing.set_defaults(run=_list)


def _plan(arguments: argparse.Namespace) -> None:
    tables = catalog.load()
    engine = database.connect(settings().control_url)
    plan = rewind_plan.plan(engine, tables.table(arguments.table), tables, arguments.moment)
    if arguments.json:
        print(json.dumps(asdict(plan), indent=2, default=str))
    else:
        print("\n".join(plan.lines()))
    if plan.refusals:
        raise UsageError(f"{plan.table} cannot be put back to {arguments.moment}: the lines above say why")


def _list(arguments: argparse.Namespace) -> None:
    newest = rewinds.newest(database.connect(settings().control_url), arguments.limit)
    if arguments.json:
        print(json.dumps([asdict(rewind) for rewind in newest], indent=2))
    else:
        print("\n".join([line for rewind in newest for line in _lines(rewind)] or ["no rewind yet"]))


def _lines(rewind: Rewind) -> Iterator[str]:
    planned_at = datetime.fromtimestamp(rewind.planned_at, UTC)
    is_dead = rewind.is_begun and not rewind.is_held
    phase = "failed" if rewind.failure and rewind.is_begun else "died" if is_dead else rewind.phase
    request = f"{rewind.table} to {rewind.moment}  by {rewind.who}: {rewind.reason}"
    yield f"{rewind.number:>4}  {planned_at:%Y-%m-%d %H:%M:%S}Z  {phase:<10}{request}"
    yield f"      {rewind.failure or rewind.message}"
    if is_dead:
        remedy = f"spark-submit jobs/rewind.py --number {rewind.number} ends it, or action give up"
        yield f"      its flows stay stopped: {remedy}"
    if rewind.stopped:
        yield f"      has stopped {', '.join(rewind.stopped)}"
