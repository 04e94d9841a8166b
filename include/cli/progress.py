"""The commands `progress` and `gather`: the durations of a flow's newest batches, and gathering by hand."""

import argparse
import json
from datetime import datetime
from typing import Any

from include import catalog
from include.monitoring import progress_journal, progress_rows, progress_table
from include.monitoring.progress_rows import PHASES_MS


def add(commands: Any) -> None:
    """Adds the commands. commands: what `add_subparsers` returned."""
    progress = commands.add_parser("progress", help="what the newest batches of a flow took, also idle and failed ones")
    progress.add_argument("flow")
    progress.add_argument("--limit", type=int, default=20, metavar="N", help="at most so many (20)")
    progress.add_argument("--json", action="store_true", help="for programs")
    progress.set_defaults(run=_progress)
    gather = commands.add_parser("gather", help="append what drivers wrote down to ledger.query_progress, by hand")
    gather.set_defaults(run=_gather)


def _progress(arguments: argparse.Namespace) -> None:
    newest = progress_rows.newest(arguments.flow, arguments.limit)
    if not newest:
        # Raises for an unknown flow. A flow that is no longer declared may still have progress.
        catalog.load().flow(arguments.flow)
    if arguments.json:
        print(json.dumps([_as_json(row) for row in newest], indent=2))
        return
    print("\n".join(_line(row) for row in newest) or f"no progress of {arguments.flow} was told yet")


def _as_json(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "at": row["at"].isoformat(), "source_metrics": dict(row["source_metrics"] or {})}


def _line(row: dict[str, Any]) -> str:
    occurred_at: datetime = row["at"]
    batch = "" if row["batch"] is None else f"/{row['batch']}"
    head = f"{occurred_at:%Y-%m-%d %H:%M:%S}Z  {row['generation']}{batch}  {row['event']}"
    if row["event"] in ("failed", "ended"):
        return f"{head}  {(row['error'] or '').partition(chr(10))[0]}".rstrip()
    durations = ", ".join(
        f"{name.removesuffix('_ms').replace('_', ' ')} {row[name]:,}" for name in PHASES_MS if row[name]
    )
    rates = (row["input_rows_per_second"], row["processed_rows_per_second"])
    per_second = " in, ".join("?" if rate is None else f"{rate:,.1f}" for rate in rates)
    rows = "" if row["event"] == "idle" else f"  {row['input_rows']:,} rows, {per_second} out a second"
    return f"{head}{rows}  ms: {durations}"


def _gather(arguments: argparse.Namespace) -> None:
    while row_count := progress_table.gather():
        print(f"{row_count:,} rows came into {progress_rows.TABLE}")
    if row_count is None:
        print("nothing done, another process gathers at this moment")
        return
    waiting = sum(progress_journal.size(segment) for segment in progress_journal.segments())
    print(f"{waiting / 1e6:,.1f} MB are in the hands of drivers that still write them")
