"""The supervisor's memory: what it saw of each driver, and what it decided."""

from sqlalchemy import Connection, Engine, select, update

from include.control import database, lease
from include.control.database import launches
from include.control.decide import HEALTHY_SECONDS, START_SECONDS, Decision, Seen, State, decide
from include.control.process import Process


def settle(engine: Engine, driver: str, flows: list[str]) -> Decision:
    """Decide about one driver. Where it is to be started, that intent is committed before this returns.

    So a crash between intent and launch costs a timeout, and never a second driver. Raises Unreachable.
    """
    with database.transaction(engine) as connection:
        seen = _look(connection, driver, flows)
        decision = decide(seen)
        if decision.start:
            _intend(connection, driver, seen.attempts + 1)
        elif decision.state is State.HEALTHY and (seen.launched_seconds_ago or 0) > HEALTHY_SECONDS:
            connection.execute(update(launches).where(launches.c.driver == driver).values(attempts=0, failure=None))
    return decision


def record_launch(engine: Engine, driver: str, process: Process) -> None:
    """Remember the process that the intent led to."""
    with database.transaction(engine) as connection:
        connection.execute(update(launches).where(launches.c.driver == driver).values(process=process.to_json()))


def record_failure(engine: Engine, driver: str, sentence: str) -> None:
    """Why a driver ended, for the next decision and for whoever is called."""
    with database.transaction(engine) as connection:
        connection.execute(update(launches).where(launches.c.driver == driver).values(failure=sentence))


def _look(connection: Connection, driver: str, flows: list[str]) -> Seen:
    wanted = frozenset(flow for flow in flows if lease.wanted(connection, flow) == "running")
    alive = {flow for flow, holder in lease.holders(connection).items() if not holder.is_known_dead}
    row = connection.execute(select(launches).where(launches.c.driver == driver)).one_or_none()
    if row is None:
        return Seen(wanted, wanted & alive)
    launched_seconds_ago = database.now(connection) - row.intended_at
    # Without a process the supervisor died between intent and launch, and nobody can tell how far it came.
    is_young = launched_seconds_ago < START_SECONDS
    is_launch_alive = Process.from_json(row.process).is_alive if row.process else is_young
    return Seen(wanted, wanted & alive, launched_seconds_ago, is_launch_alive, row.attempts, row.failure)


def _intend(connection: Connection, driver: str, attempts: int) -> None:
    values = {"intended_at": database.now(connection), "attempts": attempts, "process": None, "failure": None}
    if connection.execute(update(launches).where(launches.c.driver == driver).values(values)).rowcount == 0:
        connection.execute(launches.insert().values(driver=driver, **values))
