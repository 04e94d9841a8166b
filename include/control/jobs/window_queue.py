"""Windows that a running driver is asked to open: its JVM is warm, and a process of its own has to start first.

Whoever takes the request away does the window, so nobody does it twice.
"""

from sqlalchemy import Connection, Engine, delete, select

from include.control import lease
from include.control.jobs import windows
from include.control.jobs.backfill_queue import BackfillStatus
from include.control.store import database
from include.control.store.schema import window_requests

# A driver that has not begun by then has its hands full.
PATIENCE_SECONDS = 300


def ask(engine: Engine, number: int, driver: str) -> bool:
    """Ask this driver for a window of the calendar; returns False where no such driver lives. Raises Unreachable."""
    with database.transaction(engine) as connection:
        if lease.of_driver(driver) not in lease.alive(connection):
            return False
        _enter(connection, number, driver)
    return True


def take(engine: Engine, number: int) -> bool:
    """Take the request away; returns whether it was still there, and the window so belongs to the caller."""
    with database.transaction(engine) as connection:
        same = window_requests.c.number == number
        return connection.execute(delete(window_requests).where(same)).rowcount == 1


def leave(engine: Engine, number: int, driver: str) -> None:
    """The driver had to end before it was done: the next one is to do it."""
    with database.transaction(engine) as connection:
        _enter(connection, number, driver)


def _enter(connection: Connection, number: int, driver: str) -> None:
    values = {"number": number, "driver": driver, "asked_at": database.now(connection)}
    connection.execute(database.insert(connection, window_requests).values(values).on_conflict_do_nothing())


def standing(engine: Engine, number: int) -> BackfillStatus:
    """For whoever waits for it; done is also what failed, which its line in the calendar tells. Raises Unreachable."""
    with database.reading(engine) as connection:
        same = window_requests.c.number == number
        asked = connection.execute(select(window_requests).where(same)).one_or_none()
        if asked:
            lives = lease.of_driver(asked.driver) in lease.alive(connection)
            waited_seconds = database.now(connection) - asked.asked_at
            said = f"driver '{asked.driver}' is asked to do it"
            return BackfillStatus(said, is_in_hand=lives and waited_seconds < PATIENCE_SECONDS)
    window = windows.find(engine, number)
    if window is None:
        return BackfillStatus("it was never planned", failure=f"nobody planned window {number}")
    if window.state in ("asked", "open"):
        return BackfillStatus(f"{window.table}: {window.step or window.state}", is_in_hand=True)
    if window.state == "planned":
        return BackfillStatus("a driver is about to open it")
    if window.state == "failed" and window.closed_at is None:
        return BackfillStatus("its driver died", failure=window.why)
    return BackfillStatus(f"it is {window.state}", is_done=True)
