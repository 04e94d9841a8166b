"""Which tables a full refresh may make anew, and what is said of the others."""

from include.spec import Delta, Kafka, Table


def why_not(table: Table) -> str | None:
    """Why a full refresh must not make it anew, and what is possible instead; None where it may."""
    kafka = [str(flow.source) for flow in table.flows if isinstance(flow.source, Kafka)]
    if table.reset_allowed or (table.reset_allowed is None and not kafka):
        return None
    kept = all(isinstance(flow.source, Delta) for flow in table.flows)
    instead = "backfill a range of it" if kept else "refresh the tables that read it"
    if table.reset_allowed is False:
        return f"its file says reset_allowed=False; new data still flows: {instead}, or take that out"
    return (
        f"Kafka forgets, and rows that {', '.join(kafka)} no longer holds would be gone for good, so reset_allowed is "
        f"False; new data still flows: {instead}, or declare reset_allowed=True"
    )
