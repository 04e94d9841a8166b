"""Shutdowns of the platform: `make down` records one before it stops anything, and `make up` ends it.

They tell a driver that was stopped with its platform from one that died.
"""

import json
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Row, select, update

from include.control.flows.decide import START_SECONDS
from include.control.leases import lease
from include.control.leases.process import Holder, Process
from include.control.store import clock, database
from include.control.store.schema import drivers, runs, shutdowns

# `make down` takes less time. A supervisor that still works after it was not started by `make up`.
LONGEST_SECONDS = 120


@dataclass(frozen=True)
class Shutdown:
    """seconds_ago: since it began; math.inf if unknown, because the clock was set back since. stopped: the drivers that
    were alive when it began.
    """

    seconds_ago: float
    stopped: frozenset[str]


def begin(engine: Engine, pids: Collection[int]) -> None:
    """Record a shutdown, unless the platform is down already. pids: the processes to be stopped. Raises Unreachable."""
    with database.transaction(engine) as connection:
        if current(connection):
            return
        now_seconds, holders = database.now(connection), lease.alive(connection)
        running = [
            row.driver
            for row in connection.execute(select(drivers).order_by(drivers.c.driver))
            if _is_stopped_with(row, holders.get(lease.driver_lease(row.driver)), pids, now_seconds)
        ]
        connection.execute(shutdowns.insert().values(began_at=now_seconds, drivers=json.dumps(running)))


def current(connection: Connection) -> Shutdown | None:
    """The newest shutdown that has not ended; None if there is none."""
    newest = select(shutdowns).where(shutdowns.c.ended_at.is_(None)).order_by(shutdowns.c.began_at.desc()).limit(1)
    row = connection.execute(newest).one_or_none()
    if row is None:
        return None
    seconds_ago = clock.seconds_ago(database.now(connection), row.began_at)
    return Shutdown(math.inf if seconds_ago is None else seconds_ago, frozenset(json.loads(row.drivers)))


def end(engine: Engine, older_than_seconds: float = 0) -> None:
    """Record that the platform runs again. Flows that had not failed start at once. Raises Unreachable.

    older_than_seconds: a younger shutdown does not end.
    """
    with database.transaction(engine) as connection:
        shutdown = current(connection)
        if shutdown is None or shutdown.seconds_ago < older_than_seconds:
            return
        is_open = shutdowns.c.ended_at.is_(None)
        connection.execute(update(shutdowns).where(is_open).values(ended_at=database.now(connection)))
        connection.execute(update(runs).where(runs.c.failure.is_(None)).values(attempts=0, intended_at=None))


def _is_stopped_with(row: Row[Any], holder: Holder | None, pids: Collection[int], now_seconds: float) -> bool:
    """Whether the driver is one of these processes and alive, or was just launched by them."""
    if holder:
        return holder.python.is_here and holder.python.pid in pids
    if row.handle is None:
        intended_seconds_ago = clock.seconds_ago(now_seconds, row.intended_at)
        return intended_seconds_ago is not None and intended_seconds_ago < START_SECONDS
    launched = Process.of_handle(row.handle)
    return launched is not None and launched.is_alive and launched.pid in pids
