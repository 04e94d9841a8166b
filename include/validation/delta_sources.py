"""What a table says of the table it reads: appends or changes, from where on, and through which temporary steps."""

from dataclasses import replace
from datetime import datetime

from include.spec import CHANGE_SCHEMA, Append, Delta, Table, Upsert, ddl
from include.validation.declaration import mistake

FEED = "delta.enableChangeDataFeed"


def check_alone(table: Table) -> None:
    """Raises DeclarationError for what is wrong by itself."""
    for flow in table.flows:
        if isinstance(flow.source, Delta):
            _check_source(table, flow.source)
    if table.temporary and not table.is_view:
        _check_step(table)


def check_among(table: Table, tables: dict[str, Table]) -> None:
    """Raises DeclarationError for what is wrong among the other tables, whose sources are known to be there."""
    for flow in table.flows:
        if isinstance(flow.source, Delta):
            _check_source_among(flow, flow.source, tables)


def _check_source_among(table: Table, wanted: Delta, tables: dict[str, Table]) -> None:
    source = tables[wanted.table]
    if source.temporary and table.branch is not None:
        raise mistake(
            table,
            f"branch '{table.branch}' reads '{source.name}', a temporary step, and one flow of several reads what is "
            f"stored: store it, or give this branch a table of its own",
        )
    if source.temporary and wanted != Delta(source.name):
        raise mistake(
            table,
            f"source '{source.name}' is a temporary step, and how its rows are read stands there: "
            f"write Delta('{source.name}') alone",
        )
    if isinstance(table.write, Upsert) and source.temporary and _reads_changes(source, tables):
        raise mistake(
            table,
            f"source '{source.name}' is a temporary step over changes, and an aggregate is recomputed from rows: "
            f"read the changes without a step between",
        )
    if wanted.changes:
        _check_feed(table, source)


def resolved(tables: dict[str, Table]) -> tuple[dict[str, Table], dict[str, Table]]:
    """Tables in graph order as the stored ones and the temporary steps.

    Each has a stored table as its source, and the steps between; one whose changes are read keeps its change feed.
    """
    flows = [flow for table in tables.values() for flow in table.flows]
    feeds = {one.source.table for one in flows if isinstance(one.source, Delta) and one.source.changes}
    done: dict[str, Table] = {}
    for name, table in tables.items():
        above = done.get(table.source.table) if isinstance(table.source, Delta) else None
        if above and above.temporary:
            table = replace(table, source=above.source, steps=(*above.steps, replace(above, steps=())))
        if name in feeds:
            table = replace(table, properties={**table.properties, FEED: "true"})
        done[name] = table
    stored = {name: table for name, table in done.items() if not table.temporary}
    return stored, {name: table for name, table in done.items() if table.temporary}


def moment(text: str) -> datetime | None:
    """The moment that a text of ISO 8601 with its time zone means; None for any other text."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else None


def _check_source(table: Table, source: Delta) -> None:
    if source.since_version is not None and source.since is not None:
        raise mistake(table, "since_version and since both say where it begins: keep one")
    if source.since is not None and not moment(source.since):
        raise mistake(
            table, f"since is {source.since!r}, no moment with its time zone: write one such as '2026-03-01T00:00:00Z'"
        )


def _check_step(table: Table) -> None:
    if not isinstance(table.source, Delta):
        raise mistake(table, "a temporary step keeps nothing, and what arrives has to be kept: let it read a table")
    said = {
        "write": table.write != Append(),
        "expect": table.expect,
        "owner": table.owner,
        "fresh_minutes": table.fresh_minutes,
        "schedule": table.schedule,
        "cluster_by": table.cluster_by,
        "partition_by": table.partition_by,
        "time_column": table.time_column,
        "reset_allowed": table.reset_allowed is not None,
        "properties": table.properties,
    }
    useless = next((name for name, value in said.items() if value), None)
    if useless:
        raise mistake(
            table, f"{useless} is of no use to a temporary step, which is not stored: put it on the tables that read it"
        )


def _reads_changes(step: Table, tables: dict[str, Table]) -> bool:
    """Whether a temporary step, or one above it, reads a change feed."""
    while step.temporary and isinstance(step.source, Delta):
        if step.source.changes:
            return True
        step = tables[step.source.table]
    return False


def _check_feed(table: Table, source: Table) -> None:
    if source.properties.get(FEED, "true").lower() != "true":
        raise mistake(
            source, f"properties switch {FEED} off, and {table.name} reads the changes of this table: take that out"
        )
    taken = [name for name in ddl.columns(source.schema) if name in ddl.columns(CHANGE_SCHEMA)]
    if taken:
        raise mistake(
            source,
            f"column '{taken[0]}' has a name of the change feed, and {table.name} reads the changes of this table: "
            f"call it something else",
        )
