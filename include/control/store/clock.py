"""The age of stored times. It is unknown for future times, which were stored before the clock was set back."""

from sqlalchemy import Connection, update

from include.control.store import database
from include.control.store.schema import drivers, runs

# Small corrections of the clock, such as by NTP, are ignored.
CORRECTION_SECONDS = 60


def seconds_ago(now_seconds: float, moment: float | None) -> float | None:
    """The age of a time in seconds since 1970; None if it is None, or lies in the future."""
    return None if moment is None or moment > now_seconds + CORRECTION_SECONDS else max(0.0, now_seconds - moment)


def clamp_future_times(connection: Connection, driver: str, flows: list[str]) -> None:
    """Set future times of this driver and these flows to now, so that starts are due. The caller locks the rows."""
    now, is_listed = database.now(connection), runs.c.flow.in_(flows)
    is_future_intent, is_future_sign = is_listed & (runs.c.intended_at > now), is_listed & (runs.c.sign_at > now)
    connection.execute(update(runs).where(is_future_intent).values(intended_at=now, attempts=0))
    connection.execute(update(runs).where(is_future_sign).values(sign_at=now))
    is_future_restart = (drivers.c.driver == driver) & (drivers.c.ends_at > now)
    connection.execute(update(drivers).where(is_future_restart).values(ends_at=now))
