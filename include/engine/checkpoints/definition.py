"""What a table file says, as a fingerprint: of all of it, and of what makes its rows."""

import ast
import hashlib
import inspect
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from include import catalog
from include.errors import Broken
from include.readers import offset_log
from include.spec import Table, ddl

# How a flow runs, and not what its rows are.
NOT_OF_ROWS = ("max_offsets", "max_files", "max_bytes", "in_windows")


def fingerprint(table: Table) -> str:
    """SHA-256 of what the declaration says, and of the files its transform and those of its steps stand in."""
    said = [f"{replace(part, transform=None, steps=())!r}\n{_code(part.transform)}" for part in (*table.steps, table)]
    return hashlib.sha256("\n".join(said).encode()).hexdigest()


def rows_fingerprint(table: Table) -> str:
    """SHA-256 of what decides which rows come out of a source: columns, parse, transform, write mode and rules.

    Comments, whitespace and how often the flow reads do not count.
    """
    parts = [
        (
            _values(part.source),
            ddl.definitions(part.schema),
            part.parse,
            _meaning(part.transform),
            _values(part.write),
            part.expect,
        )
        for part in (*table.steps, table)
    ]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def of_commit(checkpoints: Path, commit: tuple[int, int] | None) -> dict[str, Any] | None:
    """The definition that made a flow's commit, by generation and batch; None where nobody knows."""
    if commit is None:
        return None
    generation, batch = commit
    try:
        owner = offset_log.owner(checkpoints / str(generation))
    except Broken:
        # That may be why it was reset.
        return None
    made = [definition for definition in owner.get("definitions") or [] if definition["from_batch"] <= batch]
    return made[-1] if made else None


def _values(declared: Any) -> dict[str, Any]:
    named = {field.name: getattr(declared, field.name) for field in fields(declared)}
    return {"kind": type(declared).__name__, **{name: named[name] for name in named if name not in NOT_OF_ROWS}}


def _code(transform: Callable[[Any], Any] | str | None) -> str:
    if transform is None or isinstance(transform, str):
        return transform or ""
    with catalog.TABLE_FILES:
        return inspect.getsource(inspect.getmodule(transform) or transform)


def _meaning(transform: Callable[[Any], Any] | str | None) -> str:
    """Its code without comments, docstrings and the declaration of the table, which counts by itself."""
    if transform is None or isinstance(transform, str):
        return " ".join((transform or "").split())
    tree = ast.parse(_code(transform))
    tree.body = [statement for statement in tree.body if not _is_passed_over(statement)]
    return ast.dump(tree)


def _is_passed_over(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id == "TABLE" for target in statement.targets)
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
