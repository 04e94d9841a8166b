"""That the platform was stopped on purpose: noted by `make down` before it stops anything, ended by `make up`.

So whoever looks can tell a driver that was stopped with its platform from one that died.
"""

import json
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Row, select, update

from include.control import lease
from include.control.decide import START_SECONDS
from include.control.process import Holder, Process
from include.control.store import clock, database
from include.control.store.schema import drivers, runs, shutdowns

# `make down` is done by then. A supervisor that works later was started by other means than `make up`.
LONGEST_SECONDS = 120


@dataclass(frozen=True)
class Shutdown:
    """seconds_ago: since it began; math.inf where nobody knows, because the clock was put back since.
    stopped: the drivers that lived when it began, and were stopped with the platform.
    """

    seconds_ago: float
    stopped: frozenset[str]


def begin(engine: Engine, pids: Collection[int]) -> None:
    """Note it, unless the platform is down already. pids: the processes that will be stopped. Raises Unreachable."""
    with database.transaction(engine) as connection:
        if current(connection):
            return
        now, holders = database.now(connection), lease.alive(connection)
        living = [
            row.driver
            for row in connection.execute(select(drivers).order_by(drivers.c.driver))
            if _lives(row, holders.get(lease.of_driver(row.driver)), pids, now)
        ]
        connection.execute(shutdowns.insert().values(began_at=now, drivers=json.dumps(living)))


def current(connection: Connection) -> Shutdown | None:
    """None while the platform is not down, or not by `make down`."""
    newest = select(shutdowns).where(shutdowns.c.ended_at.is_(None)).order_by(shutdowns.c.began_at.desc()).limit(1)
    row = connection.execute(newest).one_or_none()
    if row is None:
        return None
    ago = clock.seconds_ago(database.now(connection), row.began_at)
    return Shutdown(math.inf if ago is None else ago, frozenset(json.loads(row.drivers)))


def end(engine: Engine, older_than_seconds: float = 0) -> None:
    """The platform is started again; a flow that did not fail before starts at once. Raises Unreachable."""
    with database.transaction(engine) as connection:
        found = current(connection)
        if found is None or found.seconds_ago < older_than_seconds:
            return
        is_open = shutdowns.c.ended_at.is_(None)
        connection.execute(update(shutdowns).where(is_open).values(ended_at=database.now(connection)))
        connection.execute(update(runs).where(runs.c.failure.is_(None)).values(attempts=0, intended_at=None))


def _lives(row: Row[Any], holder: Holder | None, pids: Collection[int], now: float) -> bool:
    """Whether a driver of these processes lives, or is just being launched by them."""
    if holder:
        return holder.python.is_here and holder.python.pid in pids
    if row.handle is None:
        ago = clock.seconds_ago(now, row.intended_at)
        return ago is not None and ago < START_SECONDS
    launched = Process.of_handle(row.handle)
    return launched is not None and launched.is_alive and launched.pid in pids
