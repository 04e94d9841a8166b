"""What a person has approved, written where the job looks before it begins: no task of Airflow stands for that."""

from sqlalchemy import Engine, select

from include.control import commands
from include.control.jobs import rewinds
from include.control.jobs.rewinds import Rewind
from include.control.store import database
from include.control.store.job_schema import approvals
from include.errors import UsageError


def approve(engine: Engine, one: Rewind, by: str) -> None:
    """It may be begun; who approved it goes into the audit."""
    with database.transaction(engine) as connection:
        values = {"job": rewinds.of_job(one.number), "who": by, "at": database.now(connection)}
        connection.execute(database.insert(connection, approvals).values(values).on_conflict_do_nothing())
        commands.record(connection, one.who, "rewind", one.table, one.reason, f"to {one.moment}: approved by {by}")


def require(engine: Engine, one: Rewind) -> None:
    """Raises UsageError where nobody has approved it; one that has begun is to be ended in any case."""
    if one.is_begun:
        return
    with database.reading(engine) as connection:
        own = select(approvals.c.who).where(approvals.c.job == rewinds.of_job(one.number))
        if connection.execute(own).first() is None:
            raise UsageError(
                f"{one.table}: rewind {one.number} is not begun, as nobody has approved it: approve it in Airflow, or "
                f"begin it with --approved-by NAME"
            )
