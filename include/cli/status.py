"""The command `status`: the state, lag and freshness of every flow."""

import argparse
import json
import sys
import time
from collections.abc import Iterable
from typing import Any

from include import catalog
from include.cli import text_columns
from include.control.supervision import supervisor_presence
from include.errors import SluiceError
from include.monitoring import lag as lags
from include.monitoring.lag import Lag
from include.monitoring.status import IN_WINDOWS, VIEW, FlowStatus, rows, statuses
from include.readers.delta_log import DeltaLog
from include.settings import settings


def text(flow_statuses: Iterable[FlowStatus]) -> str:
    """Formats the statuses for people: one line for each flow, and below them what is wrong."""
    lines = [("flow", "state", "behind by", "oldest unread", "promise", "trend")]
    notes = []
    for status in flow_statuses:
        state = status.state or "unknown"
        wanted = "" if status.wanted in (None, "running") else f" (wanted {status.wanted})"
        refresh, _, why_full = status.refresh.partition(": ")
        age = (
            "?"
            if status.lag.seconds is None
            else text_columns.duration(status.lag.seconds)
            if status.lag.seconds
            else ""
        )
        lines.append(
            (
                status.flow,
                f"{state}, {refresh}" if refresh else state + wanted,
                _behind(status.lag),
                age,
                status.freshness.words,
                status.trend.words,
            )
        )
        notes += _notes(status)
        if why_full:
            notes.append(f"{status.table}: its last refresh recomputed all rows: {why_full}")
    return "\n".join([text_columns.in_columns(lines, left_columns=6), *dict.fromkeys(notes)])


def _in_short(lag: Lag) -> str:
    """The lag in the words of a column. The reason of an unknown one is a sentence, which stands below the table."""
    return "unknown" if lag.unknown and lag.words == lag.unknown else lag.words


def _reason(lag: Lag) -> str:
    return f"{lag.unknown}" if lag.is_away else f"{lag.flow}: {lag.unknown}"


def _behind(lag: Lag) -> str:
    if lag.unknown or not lag.rows:
        return _in_short(lag)
    return f"{lag.words}, {'over ' if lag.is_more else ''}{lag.rows:,} rows, {(lag.bytes or 0) / 1e6:,.1f} MB"


def _notes(status: FlowStatus) -> list[str]:
    notes = list(status.stale)
    if status.alarm:
        notes.append(f"{status.flow}: {status.alarm}")
    if status.state is None:
        notes.append(status.reason)
    elif status.state == VIEW and status.reason:
        # A view with several sources gives this note once.
        notes.append(f"{status.table}: {status.reason}")
    elif status.state not in ("HEALTHY", "STOPPED", IN_WINDOWS, VIEW):
        notes.append(f"{status.flow}: {status.state}: {status.reason}")
    if status.lag.unknown:
        notes.append(_reason(status.lag))
    if status.longer_interval_seconds and status.state == "HEALTHY":
        seconds = status.longer_interval_seconds
        notes.append(f"{status.flow}: its driver is busy, so that its batches begin every {seconds:.1f} s")
    notes += [
        f"{status.flow}: {rows:,} rows of its newest batches have no partner in {lookup}"
        for lookup, rows in status.no_partner.items()
    ]
    if status.in_flight is not None:
        notes.append(f"{status.flow}: batch {status.in_flight} is planned and not committed: a restart replays it")
    if (hours := status.lag.hours_until_loss) is not None:
        clock = status.lag.expires
        assert clock
        where = f"topic '{clock.topic}', partition {clock.partition}"
        notes.append(f"{status.flow}: Kafka deletes unread records of {where} in {hours:,.1f} h")
    return notes


def add(commands: Any) -> None:
    """Adds the command `status`."""
    parser = commands.add_parser("status", help="every flow: wanted and seen, lag, freshness, trend")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    tables = catalog.load()
    all_statuses = statuses(tables)
    for warning in filter(None, (supervisor_presence.absence(settings().control_url), *tables.warnings.values())):
        # JSON on stdout must stay parseable.
        print(warning, end="\n\n", file=sys.stderr if arguments.json else sys.stdout)
    print(json.dumps([status.as_json() for status in all_statuses], indent=2) if arguments.json else text(all_statuses))


def summary() -> str:
    """Returns one line for each table: rows, lag, and age of its newest commit.

    Tables with several flows, and views with several sources, have one more line for each. The reasons of unknown lags
    follow.
    """
    tables = catalog.load()
    measured = lags.measure(tables.readers.values())
    behind = {flow: _in_short(flow_lag) for flow, flow_lag in measured.items()}
    reasons = dict.fromkeys(_reason(flow_lag) for flow_lag in measured.values() if flow_lag.unknown)
    lines = [("table", "rows", "behind its source by", "newest commit")]
    for table in tables.tables.values():
        flows, kind = table.readers, "source" if table.is_view else "flow"
        words = behind[flows[0].flow] if len(flows) == 1 else f"{len(flows)} {kind}s"
        lines.append((table.name, _count(table.name), words, _age(table.name)))
        if len(flows) > 1:
            lines += [(f"  {kind} {flow.flow}", "", behind[flow.flow], "") for flow in flows]
        if table.has_quarantine or settings().is_stored(table.quarantine):
            lines.append((table.quarantine, _count(table.quarantine), "", _age(table.quarantine)))
    return "\n".join([text_columns.in_columns(lines, left_columns=1), *reasons])


def _count(table: str) -> str:
    number = rows(table)
    return "not yet" if number is None else f"{number:,}"


def _age(table: str) -> str:
    if not settings().is_stored(table):
        return ""
    try:
        log = DeltaLog(settings().table_path(table))
        return f"{time.time() - log.commit(log.newest).timestamp:.0f} s ago"
    except SluiceError:
        return "?"
