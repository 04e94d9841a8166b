"""How a DAG appears in Airflow: its line in the list of DAGs, its owner, its tags and its documentation."""

from collections.abc import Iterable
from string import Template

from include.spec import Table

# Of a table that names none, and of the DAGs that belong to no table.
OWNER = "sluice"
# Airflow refuses to import a DAG with a longer tag.
TAG_MOST_CHARACTERS = 100


def documentation(docstring: str, table: str) -> str:
    """The docstring of a DAG file, in which `$table` stands for the name of the table, or of a flow."""
    return Template(docstring).substitute(table=table)


def description(docstring: str, table: str) -> str:
    """The first sentence of the documentation, which is the docstring's first line."""
    return documentation(docstring, table).splitlines()[0]


def owner(table: Table) -> str:
    return table.owner or OWNER


def tags(verb: str, table: Table) -> list[str]:
    """By which the list is filtered: the verb, the layer and the table, and `sluice` for all."""
    names = (verb, table.layer, table.name, "sluice")
    return [name if len(name) <= TAG_MOST_CHARACTERS else f"{name[: TAG_MOST_CHARACTERS - 1]}…" for name in names]


def example(names: Iterable[str]) -> str:
    """Which table or flow the documentation names in examples, of a DAG that belongs to no table."""
    return next((name for name in names if name.startswith("silver.")), "silver.orders")
