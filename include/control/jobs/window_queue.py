"""Requests for windows that a running driver opens. Its JVM is warm, while a separate process has to start first.

Whoever deletes the request executes the window, so no window is executed twice.
"""

from sqlalchemy import Connection, Engine, delete, select

from include.control import lease
from include.control.jobs import windows
from include.control.jobs.backfill_queue import RequestStatus
from include.control.store import database
from include.control.store.schema import window_requests

# A driver that has not begun after this time is too busy.
CLAIM_TIMEOUT_SECONDS = 300


def request(engine: Engine, number: int, driver: str) -> bool:
    """Request a planned window from a driver. Returns False if the driver is not alive. Raises Unreachable."""
    with database.transaction(engine) as connection:
        if lease.driver_lease(driver) not in lease.alive(connection):
            return False
        _insert_request(connection, number, driver)
    return True


def claim(engine: Engine, number: int) -> bool:
    """Delete the request. Returns whether it still existed: then the window is the caller's. Raises Unreachable."""
    with database.transaction(engine) as connection:
        is_requested = window_requests.c.number == number
        return connection.execute(delete(window_requests).where(is_requested)).rowcount == 1


def hand_back(engine: Engine, number: int, driver: str) -> None:
    """Return the request for the next driver, because this one ends before the window is done. Raises Unreachable."""
    with database.transaction(engine) as connection:
        _insert_request(connection, number, driver)


def _insert_request(connection: Connection, number: int, driver: str) -> None:
    values = {"number": number, "driver": driver, "asked_at": database.now(connection)}
    connection.execute(database.insert(connection, window_requests).values(values).on_conflict_do_nothing())


def status(engine: Engine, number: int) -> RequestStatus:
    """The status of a requested window, for the task that waits for it. A failed window is done too: its row in the
    calendar names the failure. Raises Unreachable.
    """
    with database.reading(engine) as connection:
        is_requested = window_requests.c.number == number
        request = connection.execute(select(window_requests).where(is_requested)).one_or_none()
        if request:
            is_alive = lease.driver_lease(request.driver) in lease.alive(connection)
            waited_seconds = database.now(connection) - request.asked_at
            message = f"driver '{request.driver}' is asked to do it"
            return RequestStatus(message, is_in_hand=is_alive and waited_seconds < CLAIM_TIMEOUT_SECONDS)
    window = windows.find(engine, number)
    if window is None:
        return RequestStatus("it was never planned", failure=f"nobody planned window {number}")
    if window.state in ("asked", "open"):
        return RequestStatus(f"{window.table}: {window.step or window.state}", is_in_hand=True)
    if window.state == "planned":
        return RequestStatus("a driver is about to open it")
    if window.state == "failed" and window.closed_at is None:
        return RequestStatus("its driver died", failure=window.why)
    return RequestStatus(f"it is {window.state}", is_done=True)
