"""The readers that hold back VACUUM besides the flows, and the flows that were released and no longer do."""

from sqlalchemy import Connection, Engine, delete, select

from include.control.flows import incidents
from include.control.flows.alarms import AlarmKind
from include.control.store import audit, database
from include.control.store.schema import readers, releases
from include.errors import FlowBroken

HOLD, RELEASE_HOLD = "hold", "release hold"


def register(
    engine: Engine, name: str, table: str, version: int, hours: float, requester: str, reason: str = ""
) -> None:
    """Keep this version and every later one of `table` for the reader `name`, for this many hours. Raises Unreachable.

    A second registration of the same reader replaces the first. The audit has each.
    """
    with database.transaction(engine) as connection:
        now = database.now(connection)
        values = {"name": name, "target": table, "version": version, "since": now, "ends_at": now + hours * 3600}
        statement = database.insert(connection, readers).values(values)
        connection.execute(statement.on_conflict_do_update(index_elements=["name", "target"], set_=values))
        _end_copies_left(connection, table)
        result = f"version {version} and every later one are kept for {name}, for {hours:g} h"
        audit.record(connection, requester, HOLD, table, reason, result)


def unregister(engine: Engine, name: str, table: str, requester: str, reason: str = "") -> bool:
    """Delete a registration. Returns whether there was one. Raises Unreachable."""
    with database.transaction(engine) as connection:
        is_reader = (readers.c.name == name) & (readers.c.target == table)
        was_held = connection.execute(delete(readers).where(is_reader)).rowcount > 0
        _end_copies_left(connection, table)
        result = f"nothing is kept for {name} any more" if was_held else f"nothing done, nothing is kept for {name}"
        audit.record(connection, requester, RELEASE_HOLD, table, reason, result, was_held)
        return was_held


def registered(engine: Engine, table: str) -> list[tuple[str, int, float]]:
    """Name, version and registration time (seconds since 1970) of the table's valid readers. Raises Unreachable."""
    with database.reading(engine) as connection:
        is_valid = (readers.c.target == table) & (readers.c.ends_at > database.now(connection))
        rows = connection.execute(select(readers).where(is_valid).order_by(readers.c.name))
        return [(row.name, row.version, row.since) for row in rows]


def begin_copies_left(connection: Connection, job: str, table: str) -> None:
    """Open the alarm that readers may have copies of rows that an erasure took out, if any reader is registered."""
    names = connection.execute(select(readers.c.name).where(readers.c.target == table).order_by(readers.c.name))
    if found := list(names.scalars()):
        reason = f"{job} took rows of erased subjects out, and {', '.join(found)} may have copies"
        incidents.begin(connection, table, AlarmKind.COPIES_LEFT, reason)


def _end_copies_left(connection: Connection, table: str) -> None:
    """End it once each reader has released its hold since then, or holds again."""
    alarm = incidents.open_in(connection, AlarmKind.COPIES_LEFT.target(table))
    before = select(readers.c.name).where(readers.c.target == table, readers.c.since < (alarm.began_at if alarm else 0))
    if alarm and connection.execute(before).first() is None:
        incidents.end(connection, alarm.target)


def release(connection: Connection, flow: str, requester: str, reason: str) -> None:
    """Let VACUUM no longer wait for the flow, which can then not resume from its checkpoint."""
    values = {"flow": flow, "at": database.now(connection), "who": requester, "reason": reason}
    connection.execute(database.insert(connection, releases).values(values).on_conflict_do_nothing())


def released(engine: Engine) -> frozenset[str]:
    """The flows that VACUUM does not wait for. Raises Unreachable."""
    with database.reading(engine) as connection:
        return frozenset(connection.execute(select(releases.c.flow)).scalars())


def require_unreleased(engine: Engine, flow: str) -> None:
    """Raises FlowBroken if the flow was released, and Unreachable."""
    with database.reading(engine) as connection:
        row = connection.execute(select(releases).where(releases.c.flow == flow)).one_or_none()
    if row:
        raise FlowBroken(
            f"{flow}: {row.who} released it ({row.reason}), so its source may have deleted what it has yet to read: "
            f"move its table away, then action reset checkpoint reads all that its source holds now",
            "RELEASED",
        )
