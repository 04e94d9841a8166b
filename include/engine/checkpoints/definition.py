"""Fingerprints of a table's declaration: of all of it, and of what determines its rows."""

import ast
import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from include import catalog
from include.checkpoints import checkpoint_files
from include.errors import FlowBroken
from include.lake.paths import LakePath
from include.spec import Avro, Debezium, Flow, Json, Parse, Table, Transform, ddl
from include.spec.origin import NOT_SENT

# Fields that change how a flow runs, but not its rows. A flow whose cluster is another one than before is refused.
NOT_OF_ROWS = ("max_offsets", "max_files", "max_bytes", "in_windows", "refresh_seconds", "cluster", "wait")

# Fields that older releases lack. Without a value they change no fingerprint.
NEWER = {
    "sequence_by",
    "deletes",
    "truncates",
    "scd",
    "tracked",
    "partial",
    "reach_minutes",
    "version_as_of",
    "timestamp_as_of",
    "separator",
    "quote",
    "escape",
    "comment",
    "multi_line",
    "widths",
    # Other write modes have had one for longer.
    "Upsert.watermark",
}


def fingerprint(table: Table) -> str:
    """Returns the SHA-256 of the declaration and of the files that hold the transforms of the table and its steps."""
    parts = (*table.steps, table)
    texts = [f"{declared(part)}\n{_code(part.transform)}" for part in parts]
    texts += [repr(values) for part in parts for values in _newer_values(part.parse)]
    texts += [repr(options) for part in parts if (options := _file_options(part.source))]
    texts += [repr(part.pseudonymise) for part in parts if part.pseudonymise]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def declared(table: Table) -> str:
    """Returns the declaration without its transform, in the form of older releases, whose fingerprints stay valid."""
    values = {field.name: getattr(table, field.name) for field in fields(Table) if field.repr and field.name != "steps"}
    values |= {"transform": None, "branch": table.branch if isinstance(table, Flow) else None, "steps": ()}
    return f"Table({', '.join(f'{name}={value!r}' for name, value in values.items())})"


def rows_fingerprint(table: Table) -> str:
    """Returns the SHA-256 of what determines the rows: columns, parse, transform, write mode and rules.

    Comments, whitespace and rate limits do not count.
    """
    parts = [
        (
            _values(part.source),
            ddl.definitions(part.schema),
            part.parse,
            _meaning(part.transform),
            _values(part.write),
            part.expect,
            *[_values(lookup) for lookup in part.lookups],
            *_newer_values(part.parse),
            *part.pseudonymise,
        )
        for part in (*table.steps, table)
    ]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def of_commit(checkpoints: LakePath, commit: tuple[int, int] | None) -> dict[str, Any] | None:
    """Returns the definition that wrote a flow's commit (generation, batch); None if it is unknown."""
    if commit is None:
        return None
    generation, batch = commit
    try:
        owner = checkpoint_files.owner(checkpoints / str(generation))
    except FlowBroken:
        # A damaged owner file may be why the checkpoint was reset.
        return None
    earlier = [definition for definition in owner.get("definitions") or [] if definition["from_batch"] <= batch]
    return earlier[-1] if earlier else None


def _values(declared: Any) -> dict[str, Any]:
    values = {field.name: getattr(declared, field.name) for field in fields(declared)}
    newer = [field for field in fields(declared) if {field.name, f"{type(declared).__name__}.{field.name}"} & NEWER]
    unset = {field.name for field in newer if values[field.name] in (field.default, {})}
    left_out = {*NOT_OF_ROWS, *unset}
    return {"kind": type(declared).__name__, **{name: values[name] for name in values if name not in left_out}}


def _newer_values(parse: Parse | None) -> list[dict[str, Any]]:
    """Returns what is declared beyond the options of older releases, which alone are part of `repr`."""
    if isinstance(parse, Avro | Json) and parse.registry:
        return [_values(parse.registry)]
    if isinstance(parse, Debezium):
        values = {"unwrapped": parse.unwrapped, "placeholder": parse.placeholder, "binary": parse.binary or "base64"}
        values |= {"tombstones": True} if parse.tombstones else {}
        return [] if values == {"unwrapped": False, "placeholder": NOT_SENT, "binary": "base64"} else [values]
    return []


def _file_options(source: Any) -> dict[str, Any]:
    """Returns the options of files that `repr` leaves out, if they have a value."""
    values = _values(source) if source.reads_files else {}
    return {name: value for name, value in values.items() if name in NEWER}


def _code(transform: Transform | Mapping[str, Transform] | None) -> str:
    if transform is None or isinstance(transform, str):
        return transform or ""
    assert not isinstance(transform, Mapping), "a flow has the transform of its branch"
    with catalog.TABLE_FILES:
        return inspect.getsource(inspect.getmodule(transform) or transform)


def _meaning(transform: Transform | Mapping[str, Transform] | None) -> str:
    """Returns the code of the transform without comments, docstrings and the table declaration, which counts
    separately.
    """
    if transform is None or isinstance(transform, str):
        return " ".join((transform or "").split())
    tree = ast.parse(_code(transform))
    tree.body = [statement for statement in tree.body if not _is_passed_over(statement)]
    return ast.dump(tree)


def _is_passed_over(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id == "TABLE" for target in statement.targets)
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
