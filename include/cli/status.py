"""The command `status`: the state, lag and freshness of every flow."""

import argparse
import json
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from include import catalog
from include.cli import text_columns
from include.control.supervision import attendance
from include.monitoring import lag as lags
from include.monitoring.lag import Lag
from include.monitoring.status import IN_WINDOWS, VIEW, FlowStatus, look, rows, stored
from include.settings import settings


def text(found: Iterable[FlowStatus]) -> str:
    """For people: one line a flow, and below it what is wrong."""
    lines = [("flow", "state", "behind by", "oldest unread", "promise", "trend")]
    notes = []
    for one in found:
        state = one.state or "unknown"
        wanted = "" if one.wanted in (None, "running") else f" (wanted {one.wanted})"
        age = "?" if one.lag.seconds is None else text_columns.duration(one.lag.seconds) if one.lag.seconds else ""
        lines.append((one.flow, state + wanted, _behind(one.lag), age, one.freshness.words, one.trend.words))
        notes += _notes(one)
    return "\n".join([text_columns.in_columns(lines, is_left=6), *dict.fromkeys(notes)])


def _behind(lag: Lag) -> str:
    if lag.unknown:
        return "unknown: no broker" if lag.words == "unknown: no broker" else "unknown"
    if lag.rows is None or not lag.rows:
        return lag.words
    return f"{lag.words}, {'over ' if lag.is_more else ''}{lag.rows:,} rows, {(lag.bytes or 0) / 1e6:,.1f} MB"


def _notes(one: FlowStatus) -> list[str]:
    notes = list(one.stale)
    if one.alarm:
        notes.append(f"{one.flow}: {one.alarm}")
    if one.state is None:
        notes.append(one.reason)
    elif one.state == VIEW and one.reason:
        # Once, also where it has several sources.
        notes.append(f"{one.table}: {one.reason}")
    elif one.state not in ("HEALTHY", "STOPPED", IN_WINDOWS, VIEW):
        notes.append(f"{one.flow}: {one.state}: {one.reason}")
    if one.lag.unknown:
        notes.append(one.lag.unknown if one.lag.is_away else f"{one.flow}: {one.lag.unknown}")
    if one.longer_interval_seconds and one.state == "HEALTHY":
        seconds = one.longer_interval_seconds
        notes.append(f"{one.flow}: its driver is busy, so that its batches begin every {seconds:.1f} s")
    if one.in_flight is not None:
        notes.append(f"{one.flow}: batch {one.in_flight} is planned and not committed: a restart replays it")
    if (hours := one.lag.hours_until_loss) is not None:
        clock = one.lag.expires
        assert clock
        where = f"topic '{clock.topic}', partition {clock.partition}"
        notes.append(f"{one.flow}: Kafka deletes unread records of {where} in {hours:,.1f} h")
    return notes


def add(commands: Any) -> None:
    """The command `status`."""
    parser = commands.add_parser("status", help="every flow: wanted and seen, lag, freshness, trend")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    tables = catalog.load()
    found = look(tables)
    for words in filter(None, (attendance.absence(settings().control_url), *tables.warnings.values())):
        # A program that reads JSON must not read this.
        print(words, end="\n\n", file=sys.stderr if arguments.json else sys.stdout)
    print(json.dumps([one.as_json() for one in found], indent=2) if arguments.json else text(found))


def summary() -> str:
    """One line a table: rows, lag, age of its newest commit; and one for each flow, or source of a view, where it has
    several.
    """
    tables = catalog.load()
    behind = {flow: found.words for flow, found in lags.look(tables.readers.values()).items()}
    lines = [("table", "rows", "behind its source by", "newest commit")]
    for table in tables.tables.values():
        flows, kind = table.readers, "source" if table.is_view else "flow"
        words = behind[flows[0].flow] if len(flows) == 1 else f"{len(flows)} {kind}s"
        lines.append((table.name, _count(table.name), words, _age(table.name)))
        if len(flows) > 1:
            lines += [(f"  {kind} {flow.flow}", "", behind[flow.flow], "") for flow in flows]
        if table.has_quarantine:
            lines.append((table.quarantine, _count(table.quarantine), "", _age(table.quarantine)))
    return text_columns.in_columns(lines, is_left=1)


def _count(table: str) -> str:
    number = rows(table)
    return "not yet" if number is None else f"{number:,}"


def _age(table: str) -> str:
    found = stored(table)
    if found is None:
        return ""
    written = datetime.fromtimestamp(found.history(1)[0]["timestamp"] / 1000, UTC)
    return f"{(datetime.now(UTC) - written).total_seconds():.0f} s ago"
