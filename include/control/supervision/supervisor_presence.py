"""Whether a supervisor acts on the flows' states, or the platform is starting or down."""

import math
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, select

from include.control.store import clock, database
from include.control.store.schema import pulses
from include.control.supervision import shutdown
from include.control.supervision.shutdown import Shutdown
from include.control.supervision.supervision import SUPERVISOR
from include.errors import SluiceError

# The supervisor works every minute, and a run may take one.
LATE_SECONDS = 180
# The name under which `make up` shows that it is at work.
STARTER = "make up"


@dataclass(frozen=True)
class Presence:
    """worked_seconds_ago: since the supervisor's last heartbeat; None if there was none. started_seconds_ago: the same
    for `make up`. shutdown: the `make down` that stopped the platform.
    """

    worked_seconds_ago: float | None = None
    started_seconds_ago: float | None = None
    shutdown: Shutdown | None = None

    @property
    def is_starting(self) -> bool:
        """Whether `make up` is running, and the supervisor has not begun yet."""
        if self.started_seconds_ago is None or self.started_seconds_ago > LATE_SECONDS:
            return False
        if self.shutdown:
            return self.started_seconds_ago < self.shutdown.seconds_ago
        return self.worked_seconds_ago is None or self.worked_seconds_ago > LATE_SECONDS

    @property
    def absence(self) -> str | None:
        """Why nobody acts on the states, in words; None while the supervisor does."""
        if self.is_starting:
            return "The platform is starting: `make up` is at work, and the supervisor has yet to begin."
        if self.shutdown:
            duration = _format_duration(self.shutdown.seconds_ago)
            return (
                f"The platform is down: `make down` stopped it {duration} ago, and nothing is started before `make up`."
            )
        if self.worked_seconds_ago is None:
            return (
                "The supervisor has not been at work yet, so no flow is started: `make up` starts the platform; in "
                "containers, Airflow takes some minutes to start."
            )
        if self.worked_seconds_ago <= LATE_SECONDS:
            return None
        return (
            f"The supervisor is not at work, it last was {_format_duration(self.worked_seconds_ago)} ago, so no flow "
            f"is started or restarted: see docs/runbooks/supervisor.md."
        )


def read(engine: Engine) -> Presence:
    """Read the heartbeats and the shutdown in one short transaction. Raises Unreachable."""
    with database.reading(engine) as connection:
        worked, started = (_seconds_ago(connection, name) for name in (SUPERVISOR, STARTER))
        return Presence(worked, started, shutdown.current(connection))


def absence(url: str) -> str | None:
    """Why nobody acts on the states; None also if the control database does not answer: each flow's state says that."""
    try:
        return read(database.connect(url)).absence
    except SluiceError:
        return None


def _seconds_ago(connection: Connection, name: str) -> float | None:
    at = connection.execute(select(pulses.c.at).where(pulses.c.name == name)).scalar_one_or_none()
    return clock.seconds_ago(database.now(connection), at)


def _format_duration(seconds: float) -> str:
    if seconds == math.inf:
        return "some time"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:,.0f} min"
