"""The command `quarantine`: the newest rows of a quarantine, and why they are there."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from include import catalog
from include.cli.text_columns import one_line
from include.ledger.quarantine import SHOWN_CHARACTERS, Row, Sample, sample
from include.settings import settings
from include.spec import Table


def add(commands: Any) -> None:
    """Adds the command `quarantine`. commands: what `add_subparsers` returned."""
    parser = commands.add_parser("quarantine", help="the newest rows of a table's quarantine, and why they are there")
    parser.add_argument("table")
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="the newest N rows (20)")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    table = catalog.load().owner(arguments.table)
    is_stored = settings().is_stored(table.quarantine)
    newest = sample(table, arguments.limit) if is_stored else Sample([], 0, 0, {})
    if arguments.json:
        document = {"table": table.name, "quarantine": table.quarantine, **asdict(newest)}
        print(json.dumps(document, indent=2, default=_text))
        return
    if not newest.rows and newest.total in (0, None):
        print(f"{table.quarantine} holds no rows" if table.has_quarantine else f"no rule of {table.name} quarantines")
        return
    print("\n".join(map(one_line, _lines(table, newest))))


def _lines(table: Table, newest: Sample) -> Iterator[str]:
    total = f"{newest.counted:,} or more" if newest.total is None else f"{newest.total:,}"
    yield f"{table.quarantine}: {total} rows; the newest {len(newest.rows):,} of them are shown"
    counted_rows = "" if newest.counted == newest.total else f" of the newest {newest.counted:,}"
    for rule, count in newest.broke.items():
        yield f"  {count:,} rows{counted_rows} are here by '{rule}'"
    for row in newest.rows:
        committed_at = datetime.fromtimestamp(row.at, UTC)
        rules = ", ".join(f"'{rule}'" for rule in row.rules)
        yield f"{row.flow} {row.generation}/{row.batch}  {committed_at:%Y-%m-%d %H:%M:%S}Z  {rules}  {_origin(row)}"
        if row.reason:
            yield f"    {row.reason}"
        yield from (f"    {error['field']}: {error['message']}" for error in row.errors)
        yield "    " + ", ".join(f"{name}={_cell(value)}" for name, value in row.row.items())


def _origin(row: Row) -> str:
    """Describes where a row came from; if the row does not say, where its batch ended."""
    if "topic" in row.origin:
        return f"{row.origin['topic']}/{row.origin.get('partition')} offset {row.origin.get('offset')}"
    if "_filename" in row.origin:
        index = row.origin.get("_index")
        return str(row.origin["_filename"]) + ("" if index is None else f" record {index}")
    return f"its batch ended at {json.dumps(row.source_to)}"


def _cell(value: Any) -> str:
    text = "NULL" if value is None else value if isinstance(value, str) else json.dumps(value, default=_text)
    text = " ".join(str(text).strip('"').split())
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 3]}..."


def _text(value: Any) -> str:
    """Converts a value that JSON cannot represent: bytes, times, decimals."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return value.isoformat() if isinstance(value, datetime) else str(value)
