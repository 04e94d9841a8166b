"""The database's clock may be put back: moments that it wrote before then lie in the future, and tell no age."""

from sqlalchemy import Connection, update

from include.control.store import database
from include.control.store.schema import drivers, runs

# By so much a clock is corrected now and then, and nobody need notice.
CORRECTION_SECONDS = 60


def seconds_ago(now: float, moment: float | None) -> float | None:
    """None where it never was, and where nobody knows since the clock was put back."""
    return None if moment is None or moment > now + CORRECTION_SECONDS else max(0.0, now - moment)


def forget_future(connection: Connection, driver: str, flows: list[str]) -> None:
    """Of this driver and these flows, whose rows the caller holds: a start is due now, a silence begins now."""
    now, own = database.now(connection), runs.c.flow.in_(flows)
    intent, sign = own & (runs.c.intended_at > now), own & (runs.c.sign_at > now)
    connection.execute(update(runs).where(intent).values(intended_at=now, attempts=0))
    connection.execute(update(runs).where(sign).values(sign_at=now))
    asked = (drivers.c.driver == driver) & (drivers.c.ends_at > now)
    connection.execute(update(drivers).where(asked).values(ends_at=now))
