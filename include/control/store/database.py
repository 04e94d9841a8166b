"""The control database, SQLite on one machine, PostgreSQL for several: short transactions and one clock."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Connection,
    Engine,
    Table,
    create_engine,
    event,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, ProgrammingError, TimeoutError

from include.control.store import migrations, private_files, timeouts
from include.control.store.postgresql import prepare as prepare_postgresql
from include.errors import Unreachable, UsageError

URLS = {"sqlite", "postgresql+psycopg"}
MISTAKES = (DataError, IntegrityError, ProgrammingError)
READ_ONLY_SQL_TRANSACTION = "25006"


@lru_cache
def connect(url: str) -> Engine:
    """The engine for `url`, its schema that of this build. Raises UsageError and Unreachable."""
    parsed = _parse(url)
    # Threads must not wait for each other's connections.
    engine = create_engine(parsed, pool_pre_ping=True, max_overflow=-1)
    if engine.dialect.name == "sqlite":
        _prepare_sqlite(engine)
    else:
        prepare_postgresql(engine)
    shown = parsed.render_as_string(hide_password=True)
    try:
        with _answering(f"SLUICE_CONTROL_URL is {shown}, which", "start that database, or correct it"):
            # Who only wants to read must not wait for SQLite's lock here.
            with _begin_reading(engine) as connection:
                is_done = migrations.is_done(connection)
            if not is_done:
                with engine.begin() as connection:
                    # Two that come at one moment would both create its tables.
                    serialize(connection, "sluice")
                    migrations.migrate(connection)
    except BaseException:
        engine.dispose()
        raise
    return engine


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        parsed = None
    if parsed is None or parsed.drivername not in URLS:
        # Not the value: it may hold a password.
        raise UsageError(
            "SLUICE_CONTROL_URL is neither sqlite:///FILE nor postgresql+psycopg://USER:PASSWORD@HOST/DATABASE: "
            "set it to one of these, or unset it"
        )
    return parsed


def _prepare_sqlite(engine: Engine) -> None:
    if engine.url.database not in (None, "", ":memory:"):
        _keep_private(Path(engine.url.database))

    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _record: Any) -> None:
        # SQLAlchemy must not begin for us.
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {timeouts.BUSY_TIMEOUT_SECONDS * 1000}")
        connection.execute("PRAGMA journal_mode = WAL")

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        only_reads = connection.get_execution_options().get("only_reads", False)
        connection.exec_driver_sql(f"PRAGMA query_only = {int(only_reads)}")
        # Whoever writes takes the lock before its first read. Whoever reads needs none, and waits for nobody.
        connection.exec_driver_sql("BEGIN" if only_reads else "BEGIN IMMEDIATE")


def _keep_private(file: Path) -> None:
    """With what SQLite keeps beside it, which is open to the same people as itself."""
    # Where it cannot be created, SQLite says so.
    with suppress(OSError):
        private_files.create(file)
    for suffix in ("-wal", "-shm"):
        private_files.close(file.with_name(file.name + suffix))


@contextmanager
def transaction(engine: Engine) -> Iterator[Connection]:
    """One short transaction that may write. Raises Unreachable where the database does not answer or stays locked."""
    # What this program asks wrongly is no reason to try again.
    with _answering("the control database", "see SLUICE_CONTROL_URL", MISTAKES), engine.begin() as connection:
        yield connection


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """One short transaction that only reads, also while another holds the database's lock. Raises Unreachable."""
    with (
        _answering("the control database", "see SLUICE_CONTROL_URL", MISTAKES),
        _begin_reading(engine) as connection,
    ):
        try:
            yield connection
        except DBAPIError as error:
            if _code(error) in (sqlite3.SQLITE_READONLY, READ_ONLY_SQL_TRANSACTION):
                raise RuntimeError(f"a transaction that only reads was to write: {error.statement}") from error
            raise


@contextmanager
def _begin_reading(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as connection:
        connection.execution_options(only_reads=True, postgresql_readonly=True)
        with connection.begin():
            yield connection


def _code(error: DBAPIError) -> object:
    return getattr(error.orig, "sqlite_errorcode", None) or getattr(error.orig, "sqlstate", None)


@contextmanager
def _answering(what: str, remedy: str, mistakes: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    try:
        with timeouts.limited():
            yield
    except mistakes:
        raise
    except (DBAPIError, TimeoutError) as error:
        if (
            getattr(error.orig if isinstance(error, DBAPIError) else None, "sqlite_errorcode", None)
            == sqlite3.SQLITE_ERROR
        ):
            # No such column, say: what PostgreSQL calls a ProgrammingError.
            raise
        reason = " ".join(str(getattr(error, "orig", error)).split())
        raise Unreachable(f"{what} does not answer ({reason}): {remedy}") from error


def serialize(connection: Connection, name: str) -> None:
    """From here to the end of the transaction, no other that says the same name is in progress."""
    # SQLite's BEGIN IMMEDIATE lets in one at a time anyway.
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": name})


def insert(connection: Connection, table: Table) -> "sqlite.Insert | postgresql.Insert":
    """An INSERT that knows ON CONFLICT."""
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)


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
