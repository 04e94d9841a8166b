"""A preview for a terminal, and for programs."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from include.engine.preview.outcome import KEPT, REPEATED, Made
from include.engine.preview.preview import Preview

WIDEST_CELL = 28
# It tells why.
WIDEST_ERRORS = 60
ERRORS = "_errors"
WORDS = {
    KEPT: "kept",
    REPEATED: "left out, as they repeat another",
    "drop": "dropped",
    "quarantine": "quarantined",
    "fail": "would end the flow, and nothing of its batch be written",
}


def as_json(table: str, found: list[Preview]) -> str:
    return json.dumps({"table": table, "previews": [_document(one) for one in found]}, indent=2)


def _document(preview: Preview) -> dict[str, Any]:
    ends = preview.outcome
    return {
        "flow": preview.flow,
        "source": preview.source,
        "rows_read": preview.read,
        "rows_made": ends.made,
        "becomes": ends.ends,
        "rules": [{"name": rule.name, "otherwise": rule.otherwise, "broke": count} for rule, count in ends.broke],
        "rows": [asdict(row) for row in ends.rows],
        "broken_files": preview.files,
        "notes": preview.notes,
    }


def lines(preview: Preview) -> Iterator[str]:
    ends = preview.outcome
    yield f"{preview.flow}, made of {preview.source}"
    if ends.rows:
        yield from _table(ends.columns, ends.rows)
    shown = f"; {len(ends.rows):,} of them are shown" if len(ends.rows) < ends.made else ""
    yield f"{preview.read:,} rows read, {ends.made:,} made{shown}"
    yield from (f"  {count:,} {WORDS[end]}" for end, count in ends.ends.items())
    yield from (f"  {count:,} break '{rule.name}' ({rule.otherwise})" for rule, count in ends.broke if count)
    if whole := [f"'{rule.name}'" for rule, count in ends.broke if not count]:
        yield f"  none breaks {', '.join(whole)}"
    yield from (f"  quarantined: {file}: {reason}" for file, reason in preview.files.items())
    yield from (f"  {note}" for note in preview.notes)


def _table(columns: list[str], rows: list[Made]) -> Iterator[str]:
    """What becomes of each row comes first, then why."""
    others = [name for name in columns if name != ERRORS]
    names = ["becomes", "breaks", *([ERRORS] if ERRORS in columns else []), *others]
    cells = [[_cells(row, name) for name in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    rule = "+".join(["", *["-" * (width + 2) for width in widths], ""])
    yield from (rule, _line(names, widths), rule)
    yield from (_line(line, widths) for line in cells)
    yield rule


def _line(cells: Iterable[str], widths: list[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"


def _cells(row: Made, name: str) -> str:
    if name == "becomes":
        return row.becomes
    if name == "breaks":
        return _short(", ".join(row.breaks), WIDEST_ERRORS)
    value = row.row.get(name)
    if name == ERRORS:
        return _short("; ".join(f"{one['field']}: {one['message']}" for one in value or []), WIDEST_ERRORS)
    if value is None:
        return "NULL"
    return _short(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), WIDEST_CELL)


def _short(text: str, widest: int) -> str:
    """In one line, of what can be printed."""
    text = "".join(one if one.isprintable() else " " for one in text)
    return text if len(text) <= widest else f"{text[: widest - 3]}..."
