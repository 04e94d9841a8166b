"""Checks Delta sources (appends or change feed, starting version, temporary steps), and resolves the steps."""

from dataclasses import replace
from datetime import datetime

from include.spec import CHANGE_SCHEMA, Append, Delta, Table, ddl
from include.validation.declaration import declaration_error

CHANGE_FEED_PROPERTY = "delta.enableChangeDataFeed"


def check_alone(table: Table) -> None:
    """Raises DeclarationError for a mistake that is visible without other tables."""
    for flow in table.flows:
        if isinstance(flow.source, Delta):
            _check_source(table, flow.source)
    if table.temporary and not table.is_view:
        _check_step(table)


def check_among(table: Table, tables: dict[str, Table]) -> None:
    """Raises DeclarationError for a mistake in relation to other tables. All sources are declared."""
    for flow in table.flows:
        if isinstance(flow.source, Delta):
            _check_source_among(flow, flow.source, tables)


def _check_source_among(table: Table, source: Delta, tables: dict[str, Table]) -> None:
    upstream = tables[source.table]
    if upstream.temporary and table.branch is not None:
        raise declaration_error(
            table,
            f"branch '{table.branch}' reads '{upstream.name}', a temporary step, and one flow of several reads what is "
            f"stored: store it, or give this branch a table of its own",
        )
    if upstream.temporary and source != Delta(upstream.name):
        raise declaration_error(
            table,
            f"source '{upstream.name}' is a temporary step, and how its rows are read stands there: "
            f"write Delta('{upstream.name}') alone",
        )
    if table.is_recomputed and upstream.temporary and _reads_changes(upstream, tables):
        raise declaration_error(
            table,
            f"source '{upstream.name}' is a temporary step over changes, and an aggregate is recomputed from rows: "
            f"read the changes without a step between",
        )
    if source.changes:
        _check_feed(table, upstream)


def inline_steps(tables: dict[str, Table]) -> tuple[dict[str, Table], dict[str, Table]]:
    """Split tables in graph order into the stored tables and the temporary steps.

    The source of each becomes a stored table, and `steps` lists the steps in between. A table whose changes are read
    gets the table property for its change feed.
    """
    flows = [flow for table in tables.values() for flow in table.flows]
    feed_tables = {flow.source.table for flow in flows if isinstance(flow.source, Delta) and flow.source.changes}
    result: dict[str, Table] = {}
    for name, table in tables.items():
        step = result.get(table.source.table) if isinstance(table.source, Delta) else None
        if step and step.temporary:
            table = replace(table, source=step.source, steps=(*step.steps, replace(step, steps=())))
        if name in feed_tables:
            table = replace(table, properties={**table.properties, CHANGE_FEED_PROPERTY: "true"})
        result[name] = table
    stored = {name: table for name, table in result.items() if not table.temporary}
    return stored, {name: table for name, table in result.items() if table.temporary}


def parse_time(text: str) -> datetime | None:
    """Parse an ISO 8601 time with a time zone; None for any other text."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    return parsed if parsed.tzinfo else None


def _check_source(table: Table, source: Delta) -> None:
    if source.is_pinned:
        option, instead = (
            ("version_as_of", "since_version") if source.timestamp_as_of is None else ("timestamp_as_of", "since")
        )
        begin = "" if table.is_recomputed else f"begin there with {instead}, or "
        raise declaration_error(
            table,
            f"source '{source.table}' says {option}, and a flow goes on with each new version: {begin}make the table a "
            f"view, write=Replace()",
        )
    if source.since_version is not None and source.since is not None:
        raise declaration_error(table, "since_version and since both say where it begins: keep one")
    if source.since is not None and not parse_time(source.since):
        raise declaration_error(
            table, f"since is {source.since!r}, no moment with its time zone: write one such as '2026-03-01T00:00:00Z'"
        )


def _check_step(table: Table) -> None:
    if not isinstance(table.source, Delta):
        raise declaration_error(
            table, "a temporary step keeps nothing, and what arrives has to be kept: let it read a table"
        )
    options = {
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
    unsupported = next((name for name, value in options.items() if value), None)
    if unsupported:
        raise declaration_error(
            table,
            f"{unsupported} is of no use to a temporary step, which is not stored: put it on the tables that read it",
        )


def _reads_changes(step: Table, tables: dict[str, Table]) -> bool:
    """Whether a temporary step, or a step that it reads, reads a change feed."""
    while step.temporary and isinstance(step.source, Delta):
        if step.source.changes:
            return True
        step = tables[step.source.table]
    return False


def _check_feed(table: Table, source: Table) -> None:
    if source.properties.get(CHANGE_FEED_PROPERTY, "true").lower() != "true":
        raise declaration_error(
            source,
            f"properties switch {CHANGE_FEED_PROPERTY} off, and {table.name} reads the changes of this table: "
            "take that out",
        )
    reserved = [name for name in ddl.columns(source.schema) if name in ddl.columns(CHANGE_SCHEMA)]
    if reserved:
        raise declaration_error(
            source,
            f"column '{reserved[0]}' has a name of the change feed, and {table.name} reads the changes of this table: "
            f"call it something else",
        )
