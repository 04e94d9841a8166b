"""The control database: who may write, what is wanted, what was seen. SQLite on one machine, PostgreSQL for several."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Float,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    text,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from include.errors import Unreachable

# Well under any lease, so that a blocked writer notices in time to try again.
BUSY_TIMEOUT_SECONDS = 3

metadata = MetaData()

leases = Table(
    "lease",
    metadata,
    Column("flow", String, primary_key=True),
    Column("epoch", BigInteger, nullable=False, comment="fencing token: one more at every acquisition, never less"),
    Column("holder", String, nullable=False, comment="JSON of include.control.process.Holder"),
    Column("expires_at", Float, nullable=False, comment="seconds since 1970, by the database's clock; 0: released"),
)

desired = Table(
    "desired",
    metadata,
    Column("flow", String, primary_key=True),
    Column("state", String, nullable=False, comment="running or stopped; a flow without a row is wanted running"),
    Column("reason", String, nullable=False),
)

launches = Table(
    "launch",
    metadata,
    Column("driver", String, primary_key=True),
    Column("intended_at", Float, nullable=False, comment="when the supervisor last decided to start it"),
    Column("attempts", Integer, nullable=False, comment="launches since the driver was last seen healthy"),
    Column("process", String, comment="JSON of include.control.process.Process; NULL until it was launched"),
    Column("failure", String, comment="the sentence the driver last ended with"),
)


@lru_cache
def connect(url: str) -> Engine:
    """The engine for `url`, its tables created where missing. Raises Unreachable."""
    engine = create_engine(url, pool_pre_ping=True)
    if engine.dialect.name == "sqlite":
        _prepare_sqlite(engine)
    try:
        metadata.create_all(engine)
    except DBAPIError as error:
        shown = make_url(url).render_as_string(hide_password=True)
        raise Unreachable(
            f"SLUICE_CONTROL_URL is {shown}, which does not answer ({error.orig}): start that database, or correct it"
        ) from error
    return engine


def _prepare_sqlite(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _record: Any) -> None:
        # SQLAlchemy must not begin for us: BEGIN IMMEDIATE takes the write lock before the first read.
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_SECONDS * 1000}")
        connection.execute("PRAGMA journal_mode = WAL")

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


@contextmanager
def transaction(engine: Engine) -> Iterator[Connection]:
    """One short transaction. Raises Unreachable where the database does not answer or stays locked."""
    try:
        with engine.begin() as connection:
            yield connection
    except DBAPIError as error:
        raise Unreachable(f"the control database does not answer ({error.orig}): see SLUICE_CONTROL_URL") from error


def now(connection: Connection) -> float:
    """Seconds since 1970 by the database's clock, the one clock that judges expiry."""
    clock = {
        "sqlite": "SELECT (julianday('now') - 2440587.5) * 86400.0",
        "postgresql": "SELECT extract(epoch FROM clock_timestamp())",
    }
    return float(connection.execute(text(clock[connection.dialect.name])).scalar_one())


def boottime() -> float:
    """Seconds on a clock of this machine that runs on through suspension."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
