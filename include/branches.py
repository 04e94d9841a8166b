"""What a table file may say of several sources for one table, and the sentences that refuse the rest."""

import re
from collections.abc import Mapping

from include.declaration import mistake
from include.spec import Append, Delta, Kafka, Table

# It becomes part of the names of a flow and of a directory.
BRANCH = re.compile("[a-z][a-z0-9_]*|")


def check(table: Table) -> None:
    """Raises DeclarationError for branches of a table that is right otherwise."""
    if not isinstance(table.source, Mapping):
        return
    if not table.source:
        raise mistake(table, "source has no branch: name at least one, or give it one source")
    if not isinstance(table.write, Append):
        raise mistake(
            table,
            "Upsert has several sources, and the rows of one would overwrite those of another: append the branches to "
            "a table of their own, and upsert from that",
        )
    for name in table.source:
        if not isinstance(name, str) or not BRANCH.fullmatch(name):
            raise mistake(table, f"branch {name!r} is no plain word: use small letters, digits and _")
    _check_sources(table)


def _check_sources(table: Table) -> None:
    read: dict[str, str] = {}
    for flow in table.flows:
        for what in _reads(flow.source):
            other = read.setdefault(what, flow.flow)
            if other != flow.flow:
                raise mistake(
                    table,
                    f"flows '{other}' and '{flow.flow}' both read {what}, so its rows would come twice: "
                    f"take one of them out",
                )


def _reads(source: object) -> list[str]:
    if isinstance(source, Kafka):
        return [f"topic '{source.topic}'"]
    return [f"table '{source.table}'"] if isinstance(source, Delta) else []
