"""The command `inspect`: what every batch of a table read and wrote."""

import argparse
import json
from collections.abc import Iterable
from dataclasses import asdict

from include import catalog
from include.ledger.inspection import Inspection, at, inspect
from include.readers import offset_ranges
from include.readers.batches import BatchRecord, Other


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    found = commands.add_parser("inspect", help="what every batch read and wrote, and what a restart will do")
    found.add_argument("table")
    found.add_argument("--flow", help="of this flow only, where the table has several")
    found.add_argument("--limit", type=int, default=20, metavar="N", help="the newest N batches and commits (20)")
    found.add_argument("--json", action="store_true", help="for programs")
    found.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    table = catalog.load().table(arguments.table)
    if arguments.flow:
        catalog.load().flow(arguments.flow)
    found = inspect(table, arguments.limit, arguments.flow)
    print(json.dumps(asdict(found), indent=2) if arguments.json else "\n".join(_lines(found)))


def _lines(found: Inspection) -> Iterable[str]:
    counts = [f"{count:,} {kind}" for kind, count in {**found.states, **found.others}.items()]
    yield f"{found.table}: versions {found.versions[0]} to {found.versions[1]}: {', '.join(counts) or 'no batch yet'}"
    yield f"  held by its batches: {found.rows:,} rows, added as {found.files:,} files, {found.bytes / 1e6:,.1f} MB"
    for flow, restart in found.restarts.items():
        lines = restart.lines() if restart else ["no checkpoint says what a restart would do"]
        yield from (f"  {flow}: {line}" for line in lines)
        for batch, sha256 in (restart.deployed if restart else {}).items():
            yield f"  {flow}: definition {sha256[:12]} from batch {batch} on"
    yield from (f"  {fault.kind.upper()}: {fault.sentence}" for fault in found.faults)
    yield from map(line, found.newest)


def line(one: BatchRecord | Other) -> str:
    """A batch, or a commit that is none, in one line."""
    if isinstance(one, Other):
        gone = (", replaced" if one.kind == "refresh" else ", undone") if one.is_undone else ""
        said = f": {one.note}" if one.note else ""
        return f"{one.operation:<24} {one.kind:<10} version {one.version} at {at(one.committed_at)}{gone}{said}"
    said = f"{one.name:<24} {one.state:<10}"
    if one.planned_at:
        said += f" planned at {at(one.planned_at)},"
    if one.version is not None:
        wrote = ", ".join(
            f"{count:,} {what}" for what in ("rows", "files", "bytes") if (count := getattr(one, what)) is not None
        )
        said += f" version {one.version} at {at(one.committed_at or 0)}: {wrote or 'rows not told'},"
    if one.tally:
        duplicates = one.tally["kept"] - (one.tally["kept"] if one.rows is None else one.rows)
        said += (
            f" of {one.tally['read']:,} read, {duplicates:,} duplicates, {one.tally['quarantined']:,} quarantined, "
            f"{one.tally['dropped']:,} dropped,"
        )
    return f"{said} from {offset_ranges.say(one.source, one.source_from, one.source_to)}"
