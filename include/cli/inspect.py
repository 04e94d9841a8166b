"""The command `inspect`: what every batch of a table read and wrote."""

import argparse
import json
from collections.abc import Iterable
from dataclasses import asdict

from include import catalog
from include.ledger import change_outcomes
from include.ledger.inspection import Inspection, inspect, utc_time
from include.readers import offset_ranges
from include.readers.batches import BatchRecord, OtherCommit


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("inspect", help="what every batch read and wrote, and what a restart will do")
    parser.add_argument("table")
    parser.add_argument("--flow", help="of this flow only, where the table has several")
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="the newest N batches and commits (20)")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    table = catalog.load().table(arguments.table)
    if arguments.flow:
        catalog.load().flow(arguments.flow)
    inspection = inspect(table, arguments.limit, arguments.flow)
    print(json.dumps(asdict(inspection), indent=2) if arguments.json else "\n".join(_lines(inspection)))


def _lines(inspection: Inspection) -> Iterable[str]:
    counts = [f"{count:,} {kind}" for kind, count in {**inspection.states, **inspection.others}.items()]
    yield (
        f"{inspection.table}: versions {inspection.versions[0]} to {inspection.versions[1]}: "
        f"{', '.join(counts) or 'no batch yet'}"
    )
    yield (
        f"  held by its batches: {inspection.rows:,} rows, added as {inspection.files:,} files, "
        f"{inspection.bytes / 1e6:,.1f} MB"
    )
    for flow, restart in inspection.restarts.items():
        lines = restart.lines() if restart else ["no checkpoint says what a restart would do"]
        yield from (f"  {flow}: {line}" for line in lines)
        for batch, sha256 in (restart.deployed if restart else {}).items():
            yield f"  {flow}: definition {sha256[:12]} from batch {batch} on"
    yield from (f"  {fault.kind.upper()}: {fault.sentence}" for fault in inspection.faults)
    yield from map(line, inspection.newest)


def line(entry: BatchRecord | OtherCommit) -> str:
    """Describes a batch, or another commit, in one line."""
    if isinstance(entry, OtherCommit):
        undone = (", replaced" if entry.kind == "refresh" else ", undone") if entry.is_undone else ""
        text = f": {entry.note}" if entry.note else ""
        committed = f"version {entry.version} at {utc_time(entry.committed_at)}"
        return f"{entry.operation:<24} {entry.kind:<10} {committed}{undone}{text}"
    text = f"{entry.name:<24} {entry.state:<10}"
    if entry.planned_at:
        text += f" planned at {utc_time(entry.planned_at)},"
    if entry.version is not None:
        amounts = ", ".join(
            f"{count:,} {what}" for what in ("rows", "files", "bytes") if (count := getattr(entry, what)) is not None
        )
        text += f" version {entry.version} at {utc_time(entry.committed_at or 0)}: {amounts or 'rows not told'},"
    if entry.tally:
        duplicates = entry.tally["kept"] - (entry.tally["kept"] if entry.rows is None else entry.rows)
        outcomes = change_outcomes.of(entry.tally, entry.merged)
        kept = ", ".join(change_outcomes.words(outcomes)) if outcomes else f"{duplicates:,} duplicates"
        text += (
            f" of {entry.tally['read']:,} read, {kept}, {entry.tally['quarantined']:,} quarantined, "
            f"{entry.tally['dropped']:,} dropped,"
        )
    return f"{text} from {offset_ranges.describe(entry.source, entry.source_from, entry.source_to)}"
