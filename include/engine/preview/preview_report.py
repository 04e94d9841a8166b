"""Formats a preview for a terminal, and as JSON."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from include.engine.preview.outcome import DELETES, KEPT, REPEATED, STALE, TOMBSTONE, TRUNCATES, PreviewRow
from include.engine.preview.preview import Preview

WIDEST_CELL = 28
# Wider, because errors explain the outcome.
WIDEST_ERRORS = 60
ERRORS = "_errors"
WORDS = {
    KEPT: "kept",
    REPEATED: "left out, as they repeat another",
    TOMBSTONE: "change nothing, as they are tombstones",
    STALE: "stale, as a later change of their key is among these",
    TRUNCATES: "delete all keys",
    DELETES: "delete their key",
    "drop": "dropped",
    "quarantine": "quarantined",
    "fail": "would end the flow, and nothing of its batch be written",
}


def as_json(table: str, previews: list[Preview]) -> str:
    return json.dumps({"table": table, "previews": [_document(preview) for preview in previews]}, indent=2)


def _document(preview: Preview) -> dict[str, Any]:
    outcome = preview.outcome
    return {
        "flow": preview.flow,
        "source": preview.source,
        "rows_read": preview.read,
        "rows_made": outcome.total,
        "becomes": outcome.ends,
        "rules": [{"name": rule.name, "otherwise": rule.otherwise, "broke": count} for rule, count in outcome.broke],
        "rows": [asdict(row) for row in outcome.rows],
        "broken_files": preview.files,
        "failed_rows": preview.failed,
        "notes": preview.notes,
    }


def lines(preview: Preview) -> Iterator[str]:
    outcome = preview.outcome
    yield f"{preview.flow}, made of {preview.source}"
    if outcome.rows:
        yield from _table(outcome.columns, outcome.rows)
    shown = f"; {len(outcome.rows):,} of them are shown" if len(outcome.rows) < outcome.total else ""
    yield f"{preview.read:,} rows read, {outcome.total:,} made{shown}"
    yield from (f"  {count:,} {WORDS[end]}" for end, count in outcome.ends.items())
    yield from (f"  {count:,} break '{rule.name}' ({rule.otherwise})" for rule, count in outcome.broke if count)
    if unbroken_rules := [f"'{rule.name}'" for rule, count in outcome.broke if not count]:
        yield f"  none breaks {', '.join(unbroken_rules)}"
    yield from (f"  quarantined: {what}: {reason}" for what, reason in (preview.files | preview.failed).items())
    yield from (f"  {note}" for note in preview.notes)


def _table(columns: list[str], rows: list[PreviewRow]) -> Iterator[str]:
    """Yields the rows as a table. What would happen to each row comes first, then the reason."""
    others = [name for name in columns if name != ERRORS]
    names = ["becomes", "breaks", *([ERRORS] if ERRORS in columns else []), *others]
    cells = [[_cell(row, name) for name in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    rule = "+".join(["", *["-" * (width + 2) for width in widths], ""])
    yield from (rule, _table_line(names, widths), rule)
    yield from (_table_line(line, widths) for line in cells)
    yield rule


def _table_line(cells: Iterable[str], widths: list[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"


def _cell(row: PreviewRow, name: str) -> str:
    if name == "becomes":
        return row.becomes
    if name == "breaks":
        return _shorten(", ".join(row.breaks), WIDEST_ERRORS)
    value = row.row.get(name)
    if name == ERRORS:
        return _shorten("; ".join(f"{error['field']}: {error['message']}" for error in value or []), WIDEST_ERRORS)
    if value is None:
        return "NULL"
    return _shorten(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), WIDEST_CELL)


def _shorten(text: str, widest: int) -> str:
    """Returns the text on one line, without unprintable characters."""
    text = "".join(character if character.isprintable() else " " for character in text)
    return text if len(text) <= widest else f"{text[: widest - 3]}..."
