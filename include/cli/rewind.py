"""python -m include.ledger rewind TABLE MOMENT: what a rewind would do; rewinds: those that were planned or done."""

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
    one = commands.add_parser("rewind", help="what putting a table and all below back to a moment would do")
    one.add_argument("table")
    one.add_argument("moment", help="ISO 8601, such as 2026-03-01T12:00:00Z; UTC without a zone")
    one.add_argument("--json", action="store_true", help="for programs")
    one.set_defaults(run=_plan)
    found = commands.add_parser("rewinds", help="rewinds that were planned or done, and how far one has come")
    found.add_argument("--limit", type=int, default=20, metavar="N", help="at most so many (20)")
    found.add_argument("--json", action="store_true", help="for programs")
    found.set_defaults(run=_list)


def _plan(arguments: argparse.Namespace) -> None:
    tables = catalog.load()
    engine = database.connect(settings().control_url)
    found = rewind_plan.plan(engine, tables.table(arguments.table), tables, arguments.moment)
    if arguments.json:
        print(json.dumps(asdict(found), indent=2, default=str))
    else:
        print("\n".join(found.lines()))
    if found.refusals:
        raise UsageError(f"{found.table} cannot be put back to {arguments.moment}: the lines above say why")


def _list(arguments: argparse.Namespace) -> None:
    found = rewinds.newest(database.connect(settings().control_url), arguments.limit)
    if arguments.json:
        print(json.dumps([asdict(one) for one in found], indent=2))
    else:
        print("\n".join([line for one in found for line in _lines(one)] or ["no rewind yet"]))


def _lines(one: Rewind) -> Iterator[str]:
    at = datetime.fromtimestamp(one.planned_at, UTC)
    is_dead = one.is_begun and not one.is_held
    phase = "failed" if one.failure and one.is_begun else "died" if is_dead else one.phase
    asked = f"{one.table} to {one.moment}  by {one.who}: {one.reason}"
    yield f"{one.number:>4}  {at:%Y-%m-%d %H:%M:%S}Z  {phase:<10}{asked}"
    yield f"      {one.failure or one.said}"
    if is_dead:
        ends = f"spark-submit jobs/rewind.py --number {one.number} ends it, or action give up"
        yield f"      its flows stay stopped: {ends}"
    if one.stopped:
        yield f"      has stopped {', '.join(one.stopped)}"
