"""How a DAG appears in Airflow: its description, owner, tags and documentation."""

from collections.abc import Iterable
from string import Template

from include.spec import Table

# The owner of tables without one, and of DAGs without a table.
OWNER = "sluice"
# Airflow refuses to import a DAG with a longer tag.
TAG_MOST_CHARACTERS = 100


def documentation(docstring: str, table: str) -> str:
    """The docstring of a DAG file. `$table` stands for the name of the table or flow."""
    return Template(docstring).substitute(table=table)


def description(docstring: str, table: str) -> str:
    """The first line of the documentation."""
    return documentation(docstring, table).splitlines()[0]


def owner(table: Table) -> str:
    return table.owner or OWNER


def tags(verb: str, table: Table) -> list[str]:
    """The verb, the layer, the table, and `sluice`."""
    names = (verb, table.layer, table.name, "sluice")
    return [name if len(name) <= TAG_MOST_CHARACTERS else f"{name[: TAG_MOST_CHARACTERS - 1]}…" for name in names]


def example(names: Iterable[str]) -> str:
    """The table or flow that the documentation of a DAG without a table uses in its examples."""
    return next((name for name in names if name.startswith("silver.")), "silver.orders")
