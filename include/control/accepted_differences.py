"""Differences that `verify` has found, and that a person has accepted after finding out what they are."""

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Engine, select

from include.control.store import audit, database
from include.control.store.schema import accepted_differences


@dataclass(frozen=True)
class Acceptance:
    """at: seconds since 1970."""

    who: str
    reason: str
    at: float

    def __str__(self) -> str:
        return f"accepted by {self.who} on {datetime.fromtimestamp(self.at, UTC):%Y-%m-%d}: {self.reason}"


def accept(engine: Engine, table: str, key: str, sentence: str, who: str, reason: str) -> None:
    """Record that a difference of the table is no fault any more, here and in the audit. Raises Unreachable."""
    with database.transaction(engine) as connection:
        values = {"target": table, "key": key, "who": who, "reason": reason, "at": database.now(connection)}
        statement = database.insert(connection, accepted_differences).values(values)
        connection.execute(statement.on_conflict_do_nothing())
        audit.record(connection, who, "accept difference", table, reason, f"{key}: {sentence}")


def of_table(engine: Engine, table: str) -> dict[str, Acceptance]:
    """The accepted differences of the table, by key. Raises Unreachable."""
    is_of_table = accepted_differences.c.target == table
    with database.reading(engine) as connection:
        rows = connection.execute(select(accepted_differences).where(is_of_table)).all()
    return {row.key: Acceptance(row.who, row.reason, row.at) for row in rows}
