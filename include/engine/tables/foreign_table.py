"""Refuses a stored table that somebody else has made at the place of a declared one."""

from include.delta import stored_table
from include.errors import FlowBroken
from include.settings import settings
from include.spec import Table

# Every table that Sluice creates has the first. Whoever hands a table over to Sluice sets the second.
OWN, ADOPTED = "delta.enableExpiredLogCleanup", "sluice.adopted"


def require_own(table: Table) -> None:
    """Raises FlowBroken for a stored table with rows that Sluice has not created, and that nobody has handed over."""
    stored = stored_table.open_table(table.name)
    if {OWN, ADOPTED}.isdisjoint(stored.metadata().configuration) and (rows := stored.count()):
        path = settings().table_path(table.name)
        raise FlowBroken(
            f"{table.name}: its place {path} holds a table of {rows:,} rows that Sluice did not create: move it away, "
            f"or hand it over (ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('{ADOPTED}' = 'true')) and restart",
            "FOREIGN_TABLE",
        )
