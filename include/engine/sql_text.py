"""Writes values, names and paths into SQL, whatever characters they have."""

from collections.abc import Mapping

from include.lake.paths import LakePath


def literal(value: object) -> str:
    """Quotes a text, or a path, as a SQL literal."""
    escaped = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def properties(values: Mapping[str, object]) -> str:
    """Returns the pairs of TBLPROPERTIES."""
    return ", ".join(f"{literal(key)} = {literal(value)}" for key, value in values.items())


def identifier(name: str) -> str:
    """Quotes a name as a SQL identifier."""
    return f"`{name.replace('`', '``')}`"


def delta(path: LakePath | str) -> str:
    """Returns the Delta table in a directory, as SQL names it."""
    return f"delta.{identifier(str(path))}"
