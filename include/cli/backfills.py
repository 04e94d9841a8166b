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
from include.recovery.backfills import stale_words
from include.settings import settings


def add(commands: Any) -> None:
    """Adds the command `backfills`."""
    parser = commands.add_parser("backfills", help="ranges that were made again, or are just now, and stale tables")
    parser.add_argument("table", nargs="?", help="of this table only")
    parser.add_argument("--limit", type=int, default=50, metavar="N", help="at most so many (50)")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    if arguments.table:
        catalog.load().table(arguments.table)
    engine = database.connect(settings().control_url)
    newest = backfills.newest(engine, arguments.table, arguments.limit)
    stale = [mark for mark in stale_tables.list_all(engine) if arguments.table in (None, mark.table)]
    if arguments.json:
        document = {
            "backfills": [_document(backfill) for backfill in newest],
            "stale": [_document(mark) for mark in stale],
        }
        print(json.dumps(document, indent=2))
        return
    lines = [line for backfill in newest for line in _lines(backfill)] or ["no backfill yet"]
    print("\n".join([*lines, *map(stale_words, stale)]))


def _document(entry: Backfill | Stale) -> dict[str, Any]:
    begin, end = entry.range.texts
    return {**asdict(entry), "range": {"from": begin, "to": end}}


def _lines(backfill: Backfill) -> Iterator[str]:
    planned_at = datetime.fromtimestamp(backfill.planned_at, UTC)
    below = "" if backfill.root == backfill.number else f", below backfill {backfill.root}"
    phase = (
        "died" if backfill.is_abandoned and not backfill.failure else "failed" if backfill.failure else backfill.phase
    )
    yield (
        f"{backfill.number:>4}  {planned_at:%Y-%m-%d %H:%M:%S}Z  {phase:<10}{backfill.table} {backfill.range}  "
        f"by {backfill.who}{below}"
    )
    seconds = (backfill.ended_at or backfill.phase_at) - backfill.planned_at
    if backfill.ended_at is not None:
        version = "" if backfill.version is None else f", version {backfill.version}"
        yield f"      {backfill.message}{version}, {seconds:,.0f} s after it was asked for"
    elif backfill.failure:
        yield f"      {backfill.failure}"
    elif backfill.is_abandoned:
        yield (
            f"      its job died while {backfill.phase} ({backfill.message}): the same command, the task or action "
            f"give up ends it"
        )
    else:
        yield f"      {backfill.message}, since {datetime.fromtimestamp(backfill.phase_at, UTC):%H:%M:%S}Z"
    if backfill.readers:
        yield f"      has stopped {', '.join(backfill.readers)}"
