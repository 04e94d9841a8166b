"""Checks the storage options of a table: owner, clustering or partitioning, Delta table properties."""

from include.spec import Table, ddl
from include.validation.declaration import declaration_error, suggest

MOST_CLUSTERING_COLUMNS = 4
# Delta clusters by columns for which it keeps minimum and maximum values.
NOT_FOR_CLUSTERING = ("ARRAY", "BINARY", "BOOLEAN", "MAP", "STRUCT", "VARIANT")
NOT_FOR_PARTITIONING = ("ARRAY", "MAP", "STRUCT", "VARIANT")
TIME_TRAVEL = "say maintain=Maintenance(time_travel_hours=...) instead"
# Table properties that a table file must not set, and the reasons.
RESERVED_PROPERTIES = {
    "delta.deletedFileRetentionDuration": f"the vacuum guard sets it, by what streams still need: {TIME_TRAVEL}",
    "delta.logRetentionDuration": f"the vacuum guard sets it, by what streams still need: {TIME_TRAVEL}",
    "delta.enableExpiredLogCleanup": "the log is cleaned in windows, by what streams still need: take it out",
    "delta.setTransactionRetentionDuration": "a batch that Delta forgot would be written twice: take it out",
    "delta.checkpointPolicy": "Sluice reads classic checkpoints only: take it out",
    "sluice.owner": "write owner='...' instead",
    "sluice.properties": "Sluice notes there what a table file has set: take it out",
}


def check(table: Table) -> None:
    """Raises DeclarationError for the first mistake."""
    _check_columns(table, "cluster_by", table.cluster_by, NOT_FOR_CLUSTERING)
    _check_columns(table, "partition_by", table.partition_by, NOT_FOR_PARTITIONING)
    if table.cluster_by and table.partition_by:
        raise declaration_error(
            table, "cluster_by and partition_by both lay out its files: keep one, mostly cluster_by"
        )
    if len(table.cluster_by) > MOST_CLUSTERING_COLUMNS:
        raise declaration_error(
            table,
            f"cluster_by names {len(table.cluster_by)} columns, and Delta takes {MOST_CLUSTERING_COLUMNS} at most: "
            f"keep those that readers filter by",
        )
    if set(table.partition_by) >= set(ddl.columns(table.schema)):
        raise declaration_error(table, "partition_by names every column, and none is left for the files: take one out")
    if table.owner is not None and not table.owner.strip():
        raise declaration_error(table, f"owner is {table.owner!r}: write the name of a team or a person")
    _check_properties(table)


def _check_columns(table: Table, field: str, names: tuple[str, ...], unsupported: tuple[str, ...]) -> None:
    types = ddl.types(table.schema)
    for name in names:
        if name not in types:
            raise declaration_error(
                table, f"{field} names '{name}', no column of its schema: {suggest(name, list(types))}"
            )
        if list(names).count(name) > 1:
            raise declaration_error(table, f"{field} names '{name}' twice: take one out")
        if types[name] in unsupported:
            raise declaration_error(
                table, f"{field} names '{name}', and Delta takes no {types[name]} there: name another column"
            )


def _check_properties(table: Table) -> None:
    # Delta ignores the case of its property names.
    reserved = {name.lower(): reason for name, reason in RESERVED_PROPERTIES.items()}
    for name in table.properties:
        if name.lower() in reserved:
            raise declaration_error(table, f"properties set '{name}': {reserved[name.lower()]}")
