"""Checks the schema of a table, as far as that is possible without Spark."""

import re
from itertools import pairwise

from include.errors import DeclarationError
from include.spec import FILES_SCHEMA, Cast, Table, column_name, ddl
from include.validation.declaration import declaration_error, suggest

UNQUOTED = re.compile("[A-Za-z0-9_]+")
# Characters that Delta refuses in a column name, and the backquote.
INVALID_NAME_CHARACTERS = re.compile(r"[ ,;{}()\n\t=`]")
# Types that no Delta table can store, and types that Spark replaces by STRING.
UNSTORABLE = ("INTERVAL", "TIME", "VOID")
TEXT_TYPES = ("CHAR", "CHARACTER", "VARCHAR")
RULES = "_rules"
QUARANTINED = ("_flow", "_generation", "_batch", "_source", "_replay")
# Columns that say what a change of a key does.
FLAGS = ("_deleted", "_truncates", "_retained", "_shown")


def check(table: Table) -> None:
    """Raises DeclarationError with a sentence for each mistake."""
    columns = ddl.columns(table.schema)
    if not any(columns):
        raise declaration_error(table, "schema is empty: name its columns")
    if not all(columns):
        location = next(
            (f"after '{name}'" for name, following in pairwise(columns) if not following), "at its beginning"
        )
        raise declaration_error(table, f"schema has a comma too many {location}: take it out")
    if sentences := [
        *_comma_mistakes(table),
        *_name_mistakes(table),
        *_type_mistakes(table),
        *_parse_mistakes(table, columns),
    ]:
        raise DeclarationError(*[str(declaration_error(table, sentence)) for sentence in sentences], table=table.name)


def _comma_mistakes(table: Table) -> list[str]:
    missing = ddl.without_comma(table.schema)
    types = ddl.types(table.schema)
    untyped = [name for name in ddl.columns(table.schema) if name not in types]
    return [
        *[f"schema lacks a comma between '{before}' and '{after}': write one" for before, after in missing],
        *[f"column '{name}' has no type: write one behind it, such as `{name} STRING`" for name in untyped],
    ]


def _name_mistakes(table: Table) -> list[str]:
    declared = table.schema.removesuffix(FILES_SCHEMA)
    names = ddl.columns(declared)
    names_by_spelling: dict[str, str] = {}
    sentences: list[str] = []
    for name in names:
        other = names_by_spelling.setdefault(column_name.folded(name), name)
        if names.count(name) > 1 and name == other and f"column '{name}' stands" not in " ".join(sentences):
            sentences.append(f"column '{name}' stands in its schema twice: take one out")
        elif name != other:
            sentences.append(
                f"columns '{other}' and '{name}' differ in capital letters alone, and Spark takes them for one: "
                f"rename one of them"
            )
        if INVALID_NAME_CHARACTERS.search(name):
            sentences.append(f"column '{name}' has a character that Delta or SQL refuses: use letters, digits and _")
        elif name in ddl.unquoted(declared) and not UNQUOTED.fullmatch(name):
            sentences.append(f"column '{name}' has a character that SQL takes in backquotes only: write `{name}`")
    return sentences + _reserved_name_mistakes(table, names)


def _reserved_name_mistakes(table: Table, names: list[str]) -> list[str]:
    reserved = QUARANTINED if table.has_quarantine else ()
    if not table.is_recomputed:
        reserved = (RULES, *reserved)
    if table.merges_changes:
        reserved = (*FLAGS, *reserved)
    return [
        f"column '{name}' is one that Sluice adds, to count and quarantine rows: call it something else"
        for name in names
        if name.lower() in reserved
    ]


def _type_mistakes(table: Table) -> list[str]:
    return [
        f"column '{name}' is {kind}, which a Delta table cannot store: "
        f"{'declare it STRING' if kind in TEXT_TYPES else 'declare another type'}"
        for name, kind in ddl.types(table.schema).items()
        if kind in (*UNSTORABLE, *TEXT_TYPES)
    ]


def _parse_mistakes(table: Table, columns: list[str]) -> list[str]:
    if not table.parse:
        return []
    # A column of a file may have any name.
    nested = [name for name in table.parse.into if "." in name and not isinstance(table.parse, Cast)]
    sentences = [
        f"into names '{name}', and the fields of an object are not named by a dot: name '{name.split('.')[0]}', a "
        f"STRUCT column of its schema, and take what is in it in the transform"
        for name in nested
    ]
    sentences += [
        f"into names '{name}', no column of its schema: {suggest(name, columns)}"
        for name in table.parse.into
        if name not in (*columns, *nested)
    ]
    if "_errors" not in columns:
        sentences.append(
            "parse without a column for what cannot be typed: "
            "add `_errors ARRAY<STRUCT<field: STRING, message: STRING>>` to its schema"
        )
    return sentences
