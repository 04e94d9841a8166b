"""Which quarantines can be replayed: their rows can satisfy a corrected rule, and then move into the table."""

from include.spec import Table


def refusal(table: Table) -> str | None:
    """Returns why no quarantined row can move into the table, and what to do instead; None: some may."""
    if table.layer == "bronze" or table.is_view:
        return no_quarantine(table)
    if table.is_recomputed:
        return (
            f"{table.quarantine} holds source rows and buckets of which no row of the aggregate could be made: "
            f"backfill their range, which tries them again (jobs/backfill.py)"
        )
    if table.lookups:
        looked_up = ", ".join(lookup.table for lookup in table.lookups)
        return (
            f"{table.name} looks into {looked_up}, and its quarantine holds what the batches found there: backfill the "
            f"range of these rows, which looks again (jobs/backfill.py)"
        )
    return None


def no_quarantine(table: Table) -> str:
    return f"{table.name} has no quarantine whose rows a rule of its could let in: name another table"
