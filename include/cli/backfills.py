"""The command `backfills`: which ranges are computed again, and which tables are stale."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from include import catalog
from include.control.jobs import backfills, stale_tables
from include.control.jobs.backfills import Backfill
from include.control.jobs.stale_tables import Stale
from include.control.store import database
from include.recovery.backfills import words
from include.settings import settings


def add(commands: Any) -> None:
    """The command `backfills`."""
    found = commands.add_parser("backfills", help="ranges that were made again, or are just now, and stale tables")
    found.add_argument("table", nargs="?", help="of this table only")
    found.add_argument("--limit", type=int, default=50, metavar="N", help="at most so many (50)")
    found.add_argument("--json", action="store_true", help="for programs")
    found.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    if arguments.table:
        catalog.load().table(arguments.table)
    engine = database.connect(settings().control_url)
    found = backfills.newest(engine, arguments.table, arguments.limit)
    left = [one for one in stale_tables.every(engine) if arguments.table in (None, one.table)]
    if arguments.json:
        document = {"backfills": [_document(one) for one in found], "stale": [_document(one) for one in left]}
        print(json.dumps(document, indent=2))
        return
    lines = [line for one in found for line in _lines(one)] or ["no backfill yet"]
    print("\n".join([*lines, *map(words, left)]))


def _document(one: Backfill | Stale) -> dict[str, Any]:
    begins, ends = one.range.texts
    return {**asdict(one), "range": {"from": begins, "to": ends}}


def _lines(one: Backfill) -> Iterator[str]:
    at = datetime.fromtimestamp(one.planned_at, UTC)
    because = "" if one.root == one.number else f", below backfill {one.root}"
    phase = "died" if one.is_left_behind and not one.failure else "failed" if one.failure else one.phase
    yield f"{one.number:>4}  {at:%Y-%m-%d %H:%M:%S}Z  {phase:<10}{one.table} {one.range}  by {one.who}{because}"
    took = (one.ended_at or one.phase_at) - one.planned_at
    if one.ended_at is not None:
        version = "" if one.version is None else f", version {one.version}"
        yield f"      {one.said}{version}, {took:,.0f} s after it was asked for"
    elif one.failure:
        yield f"      {one.failure}"
    elif one.is_left_behind:
        yield f"      its job died while {one.phase} ({one.said}): the same command, the task or action give up ends it"
    else:
        yield f"      {one.said}, since {datetime.fromtimestamp(one.phase_at, UTC):%H:%M:%S}Z"
    if one.readers:
        yield f"      has stopped {', '.join(one.readers)}"
