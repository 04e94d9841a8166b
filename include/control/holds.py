"""Who holds back VACUUM besides the flows: readers that registered themselves. And which flows no longer do."""

from sqlalchemy import Connection, Engine, delete, select

from include.control.store import database
from include.control.store.schema import readers, releases
from include.errors import Broken


def register(engine: Engine, name: str, table: str, version: int, hours: float) -> None:
    """From now on, and for so many hours, `table` keeps this version and every later one for the reader `name`.

    Registered again, it moves. Raises Unreachable.
    """
    with database.transaction(engine) as connection:
        now = database.now(connection)
        values = {"name": name, "target": table, "version": version, "since": now, "ends_at": now + hours * 3600}
        statement = database.insert(connection, readers).values(values)
        connection.execute(statement.on_conflict_do_update(index_elements=["name", "target"], set_=values))


def unregister(engine: Engine, name: str, table: str) -> bool:
    """Let go; returns whether there was something to let go of. Raises Unreachable."""
    with database.transaction(engine) as connection:
        mine = (readers.c.name == name) & (readers.c.target == table)
        return connection.execute(delete(readers).where(mine)).rowcount > 0


def registered(engine: Engine, table: str) -> list[tuple[str, int, float]]:
    """Name, version, and since when, of each reader that counts. Raises Unreachable."""
    with database.reading(engine) as connection:
        counts = (readers.c.target == table) & (readers.c.ends_at > database.now(connection))
        rows = connection.execute(select(readers).where(counts).order_by(readers.c.name))
        return [(row.name, row.version, row.since) for row in rows]


def release(connection: Connection, flow: str, who: str, reason: str) -> None:
    """VACUUM no longer waits for the flow, which from now on cannot go on from its checkpoint."""
    values = {"flow": flow, "at": database.now(connection), "who": who, "reason": reason}
    connection.execute(database.insert(connection, releases).values(values).on_conflict_do_nothing())


def released(engine: Engine) -> frozenset[str]:
    """The flows that VACUUM does not wait for. Raises Unreachable."""
    with database.reading(engine) as connection:
        return frozenset(connection.execute(select(releases.c.flow)).scalars())


def require_unreleased(engine: Engine, flow: str) -> None:
    """Raises Broken for a flow that was released, and Unreachable."""
    with database.reading(engine) as connection:
        row = connection.execute(select(releases).where(releases.c.flow == flow)).one_or_none()
    if row:
        raise Broken(
            f"{flow}: {row.who} released it ({row.reason}), so its source may have deleted what it has yet to read: "
            f"move its table away, then action reset checkpoint reads all that its source holds now",
            "RELEASED",
        )
