"""Checks the lookups of a table, and writes the sentence for each mistake."""

from include.project.declaration import declaration_error, suggest
from include.spec import Lookup, Table, ddl


def check_alone(table: Table) -> None:
    """Raises DeclarationError for a mistake that is visible without other tables."""
    if not table.lookups:
        return
    if reason := _refusal(table):
        raise declaration_error(table, f"lookups {reason}")
    names = [name for lookup in table.lookups for name in lookup.added]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise declaration_error(table, f"its lookups add '{repeated}' twice: give one of them a prefix")
    for lookup in table.lookups:
        _check_lookup(table, lookup)


def check_among(table: Table, tables: dict[str, Table]) -> None:
    """Raises DeclarationError for a mistake in relation to other tables. All tables that it reads are declared."""
    for lookup in table.lookups:
        _check_dimension(table, lookup, tables[lookup.table])


def _refusal(table: Table) -> str | None:
    if table.layer == "bronze":
        return "add columns, and bronze keeps what arrived: put them on the silver table"
    if table.is_view:
        return "are of no use to a view, which reads any number of tables: name them in source and join them"
    if table.temporary:
        return "stand on a temporary step: put them on the table that reads it"
    if table.is_recomputed:
        return "stand on a recomputed aggregate: put them on the table it reads"
    if table.reads_files:
        return "stand on a table of files, which keeps what arrived: put them on a table that reads it"
    return None


def _check_lookup(table: Table, lookup: Lookup) -> None:
    if not lookup.keys:
        raise declaration_error(table, f"the lookup of {lookup.table} has no keys: name them in on")
    if not lookup.columns:
        raise declaration_error(table, f"the lookup of {lookup.table} adds no columns: name some")
    if lookup.at is not None and lookup.current:
        raise declaration_error(
            table, f"the lookup of {lookup.table} has at and current, and both select a row of a history: keep one"
        )


def _check_dimension(table: Table, lookup: Lookup, dimension: Table) -> None:
    if dimension.temporary:
        raise declaration_error(
            table, f"a lookup reads '{dimension.name}', a temporary step, which is not stored: read a stored table"
        )
    types = ddl.types(dimension.schema)
    for name in (*lookup.keys.values(), *lookup.columns):
        if name not in types:
            raise declaration_error(
                table, f"the lookup of {lookup.table} names '{name}', no column of it: {suggest(name, list(types))}"
            )
    keys = dimension.write.identified_by
    if dimension.write.appends and dimension.write.watermark:
        raise declaration_error(
            table,
            f"the lookup of {lookup.table} finds one row of a key, and its Append with a watermark stores a key again "
            f"after {dimension.write.watermark.minutes:g} minutes: take its watermark out, or write it as an Upsert",
        )
    if set(lookup.keys.values()) != set(keys):
        remedy = f"look for {', '.join(keys)}" if keys else "read an Upsert, or an Append with unique"
        found = ", ".join(lookup.keys.values())
        raise declaration_error(
            table, f"the lookup of {lookup.table} is on {found}, of which it may hold several rows: {remedy}"
        )
    is_history = dimension.write.is_history
    if is_history and lookup.at is None and not lookup.current:
        raise declaration_error(
            table,
            f"{lookup.table} is a history, with several rows of a key: write current=True, or name the column of the "
            f"source that selects one in at",
        )
    if not is_history and (lookup.at is not None or lookup.current):
        raise declaration_error(
            table, f"at or current selects a row of a history, and {lookup.table} is none: take it out, or write scd=2"
        )
    if lookup.refresh_seconds > dimension.maintain.retention_seconds:
        raise declaration_error(
            table,
            f"refresh_seconds of {lookup.table} is {lookup.refresh_seconds:g}, and VACUUM may delete a version after "
            f"{dimension.maintain.retention_seconds:g}: make it shorter",
        )
