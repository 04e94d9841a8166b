"""Approvals of rewinds. The rewind job checks them itself before it begins: it does not depend on an Airflow task."""

from sqlalchemy import Engine, select

from include.control import commands
from include.control.jobs import rewinds
from include.control.jobs.rewinds import Rewind
from include.control.store import database
from include.control.store.job_schema import approvals
from include.errors import UsageError


def approve(engine: Engine, rewind: Rewind, approver: str) -> None:
    """Record that a rewind may begin, and who approved it, in the table `approval` and in the audit. Raises
    Unreachable.
    """
    with database.transaction(engine) as connection:
        values = {"job": rewinds.lease_name(rewind.number), "who": approver, "at": database.now(connection)}
        connection.execute(database.insert(connection, approvals).values(values).on_conflict_do_nothing())
        commands.audit(
            connection, rewind.who, "rewind", rewind.table, rewind.reason, f"to {rewind.moment}: approved by {approver}"
        )


def require(engine: Engine, rewind: Rewind) -> None:
    """Raises UsageError if nobody has approved the rewind. A rewind that has begun needs no approval to complete."""
    if rewind.is_begun:
        return
    with database.reading(engine) as connection:
        approval = select(approvals.c.who).where(approvals.c.job == rewinds.lease_name(rewind.number))
        if connection.execute(approval).first() is None:
            raise UsageError(
                f"{rewind.table}: rewind {rewind.number} is not begun, as nobody has approved it: approve it in "
                f"Airflow, or begin it with --approved-by NAME"
            )
