"""Decides which tables a full refresh may rebuild, and why not the others."""

from include.spec import Delta, Kafka, Table


def refusal(table: Table) -> str | None:
    """Why a full refresh must not rebuild the table, with an alternative; None if it may."""
    kafka = [str(flow.source) for flow in table.flows if isinstance(flow.source, Kafka)]
    if table.reset_allowed or (table.reset_allowed is None and not kafka):
        return None
    has_only_tables = all(isinstance(flow.source, Delta) for flow in table.flows)
    alternative = "backfill a range of it" if has_only_tables else "refresh the tables that read it"
    if table.reset_allowed is False:
        return f"its file says reset_allowed=False; new data still flows: {alternative}, or take that out"
    return (
        f"Kafka forgets, and rows that {', '.join(kafka)} no longer holds would be gone for good, so reset_allowed is "
        f"False; new data still flows: {alternative}, or declare reset_allowed=True"
    )
