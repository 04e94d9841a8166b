"""Which tables a full refresh may make anew, and what is said of the others."""

from include.declaration import mistake
from include.spec import Delta, Kafka, Table


def check(table: Table) -> None:
    """Raises DeclarationError."""
    if table.reset_allowed is None:
        return
    if not isinstance(table.reset_allowed, bool):
        raise mistake(table, f"reset_allowed is {table.reset_allowed!r}: it has to be True or False")
    if table.temporary or table.is_view:
        what = "a temporary step is never stored" if table.temporary else "a view is computed in full with each refresh"
        raise mistake(table, f"reset_allowed is for tables that keep what their flows wrote, and {what}: take it out")


def why_not(table: Table) -> str | None:
    """Why a full refresh must not make it anew, and what is possible instead; None where it may."""
    if table.may_be_reset:
        return None
    kept = all(isinstance(flow.source, Delta) for flow in table.flows)
    instead = "backfill a range of it" if kept else "refresh the tables that read it"
    if table.reset_allowed is False:
        return f"its file says reset_allowed=False; new data still flows: {instead}, or take that out"
    sources = ", ".join(str(flow.source) for flow in table.flows if isinstance(flow.source, Kafka))
    return (
        f"Kafka forgets, and rows that {sources} no longer holds would be gone for good, so reset_allowed is False; "
        f"new data still flows: {instead}, or declare reset_allowed=True"
    )
