"""The control database, SQLite on one machine and PostgreSQL for several: short transactions and one clock."""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache, partial
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

from include import private_files
from include.control.store import migrations
from include.errors import Unreachable, UsageError

# Much shorter than the TTL of a lease, so that a blocked writer has time for another try.
BUSY_TIMEOUT_SECONDS = 3
# A migration may move the rows of years. Others wait for it.
MIGRATION_TIMEOUT_SECONDS = 300

_ends_at: ContextVar[float] = ContextVar("ends_at")


@contextmanager
def limited(seconds: float = BUSY_TIMEOUT_SECONDS) -> Iterator[None]:
    """Limit all waiting inside, for connections, locks and answers, to this time in total."""
    token = _ends_at.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _ends_at.reset(token)


def seconds_left() -> float:
    """The seconds until a wait has to end."""
    now_seconds = time.monotonic()
    return max(0.0, _ends_at.get(now_seconds + BUSY_TIMEOUT_SECONDS) - now_seconds)


# The server ends the transaction of a suspended process before those who wait for its locks time out.
SERVER_SIDE = {
    "idle_in_transaction_session_timeout": BUSY_TIMEOUT_SECONDS * 500,
    "lock_timeout": BUSY_TIMEOUT_SECONDS * 1000,
    "statement_timeout": BUSY_TIMEOUT_SECONDS * 1000,
}
# TCP notices that an idle connection has died before it is used.
NETWORK = {
    "keepalives_idle": BUSY_TIMEOUT_SECONDS,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": BUSY_TIMEOUT_SECONDS * 1000,
    # The minimum of psycopg.
    "connect_timeout": 2,
}


def prepare(engine: Engine) -> None:
    """Limit every connection of `engine` to the time that a transaction may take."""
    # SQLAlchemy has imported it: users of SQLite do not pay for the import.
    psycopg: Any = engine.dialect.loaded_dbapi

    @event.listens_for(engine, "do_connect")
    def do_connect(_dialect: Any, _record: Any, arguments: list[Any], options: dict[str, Any]) -> Any:
        if seconds_left() == 0:
            raise psycopg.OperationalError("no time left to connect")
        server_options = " ".join(f"-c {name}={value}" for name, value in SERVER_SIDE.items())
        options = NETWORK | options | {"options": f"{options.get('options', '')} {server_options}"}
        connection = psycopg.connect(*arguments, **options)
        # psycopg waits here without a limit: the kernel of a suspended server still answers TCP.
        connection.wait = partial(_wait, connection, psycopg.OperationalError)
        return connection


def _wait(connection: Any, timeout_error: type[Exception], generator: Any, interval: float = 0.1) -> Any:
    ends_at = time.monotonic() + seconds_left()
    try:
        return type(connection).wait(connection, generator, interval, ends_at - time.monotonic())
    except timeout_error:
        if time.monotonic() >= ends_at:
            # The answer may still arrive, and would be read as the answer to the next query.
            connection.close()
        raise


URLS = {"sqlite", "postgresql+psycopg"}
MISTAKES = (DataError, IntegrityError, ProgrammingError)
READ_ONLY_SQL_TRANSACTION, INSUFFICIENT_PRIVILEGE = "25006", "42501"
LAST_ACTIONS = "sluice.last_actions"


@lru_cache
def connect(url: str) -> Engine:
    """The engine for `url`, with the schema of this build. Raises UsageError and Unreachable."""
    parsed_url = _parse(url)
    # No limit of the pool: threads must not wait for each other's connections.
    engine = create_engine(parsed_url, pool_pre_ping=True, max_overflow=-1)
    if engine.dialect.name == "sqlite":
        _prepare_sqlite(engine)
    else:
        prepare(engine)
    # Its options may contain a password, too.
    printable_url = parsed_url.set(query={}).render_as_string(hide_password=True)
    try:
        with _raises_unreachable(f"SLUICE_CONTROL_URL is {printable_url}, which", "start that database, or correct it"):
            # A reader must not wait for SQLite's write lock here.
            with _begin_reading(engine) as connection:
                is_done = migrations.is_done(connection)
            if not is_done:
                with limited(MIGRATION_TIMEOUT_SECONDS), engine.begin() as connection:
                    _allow_long_statements(connection)
                    # Two processes that connect at the same moment would both create the tables.
                    serialize(connection, "sluice")
                    migrations.migrate(connection)
    except BaseException:
        engine.dispose()
        raise
    return engine


def _allow_long_statements(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        for name in ("statement_timeout", "lock_timeout"):
            connection.execute(text(f"SET LOCAL {name} = {MIGRATION_TIMEOUT_SECONDS * 1000}"))


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        parsed = None
    # The rest of a password behind an unescaped @ is read as a part of the host.
    if parsed is None or parsed.drivername not in URLS or "@" in (parsed.host or ""):
        # The message omits the value, which may contain a password.
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
        # The driver must not begin transactions: `on_begin` does.
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_SECONDS * 1000}")
        _write_ahead(connection)

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        only_reads = connection.get_execution_options().get("only_reads", False)
        connection.exec_driver_sql(f"PRAGMA query_only = {int(only_reads)}")
        # A writer takes the lock before its first read. A reader needs no lock and waits for nobody.
        connection.exec_driver_sql("BEGIN" if only_reads else "BEGIN IMMEDIATE")


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Set the journal mode, which SQLite refuses at once while another process writes to a new database."""
    deadline = time.monotonic() + seconds_left()
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
        threading.Event().wait(0.01)


def _keep_private(file: Path) -> None:
    """Restrict the database file, and the files that SQLite creates next to it with the same permissions."""
    # If it cannot be created, SQLite reports that.
    with suppress(OSError):
        private_files.create(file)
    for suffix in ("-wal", "-shm"):
        private_files.restrict(file.with_name(file.name + suffix))


@contextmanager
def transaction(engine: Engine) -> Iterator[Connection]:
    """One short transaction that may write. Raises Unreachable if the database does not answer or stays locked."""
    # A wrong query is a bug, which no retry cures.
    with _raises_unreachable("the control database", "see SLUICE_CONTROL_URL", MISTAKES), engine.begin() as connection:
        last_actions: list[Callable[[], None]] = []
        # The next transaction may use the same connection of the pool.
        info = connection.info
        info[LAST_ACTIONS] = last_actions
        try:
            yield connection
            for action in last_actions:
                action()
        finally:
            del info[LAST_ACTIONS]


def before_commit(connection: Connection, action: Callable[[], None]) -> None:
    """Calls the action when the block of `transaction` has ended, right before the commit."""
    connection.info[LAST_ACTIONS].append(action)


def retry_while_unreachable(action: Callable[[], None], is_over: Callable[[], bool] = lambda: False) -> None:
    """Repeats the action every second until the control database answers, or until `is_over`."""
    while True:
        try:
            return action()
        except Unreachable:
            if is_over():
                return None
            threading.Event().wait(1)


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """One short read-only transaction, which does not wait for the database's write lock. Raises Unreachable."""
    with (
        _raises_unreachable("the control database", "see SLUICE_CONTROL_URL", MISTAKES),
        _begin_reading(engine) as connection,
    ):
        try:
            yield connection
        except DBAPIError as error:
            if _error_code(error) in (sqlite3.SQLITE_READONLY, READ_ONLY_SQL_TRANSACTION):
                raise RuntimeError(f"a transaction that only reads was to write: {error.statement}") from error
            raise


@contextmanager
def _begin_reading(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as connection:
        connection.execution_options(only_reads=True, postgresql_readonly=True)
        with connection.begin():
            yield connection


def _error_code(error: DBAPIError) -> object:
    return getattr(error.orig, "sqlite_errorcode", None) or getattr(error.orig, "sqlstate", None)


@contextmanager
def _raises_unreachable(subject: str, remedy: str, mistakes: tuple[type[DBAPIError], ...] = ()) -> Iterator[None]:
    try:
        with limited():
            yield
    except mistakes as error:
        if _error_code(error) != INSUFFICIENT_PRIVILEGE:
            raise
        reason = " ".join(str(error.orig).split())
        raise UsageError(
            f"the login of SLUICE_CONTROL_URL may not do that ({reason}): use one whose role may, see "
            f"docs/operate/access.md"
        ) from error
    except (DBAPIError, TimeoutError) as error:
        if (
            getattr(error.orig if isinstance(error, DBAPIError) else None, "sqlite_errorcode", None)
            == sqlite3.SQLITE_ERROR
        ):
            # Such as a missing column, which is a ProgrammingError on PostgreSQL.
            raise
        reason = " ".join(str(getattr(error, "orig", error)).split())
        raise Unreachable(f"{subject} does not answer ({reason}): {remedy}") from error


def serialize(connection: Connection, name: str) -> None:
    """Wait until no other transaction with the same name is in progress, and block others until this one ends."""
    # SQLite's BEGIN IMMEDIATE serializes all writers anyway.
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": name})


def insert(connection: Connection, table: Table) -> "sqlite.Insert | postgresql.Insert":
    """An INSERT that supports ON CONFLICT."""
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)


def now(connection: Connection) -> float:
    """Seconds since 1970 by the database's clock, the only clock that decides about expiry."""
    clock = {
        "sqlite": "SELECT (julianday('now') - 2440587.5) * 86400.0",
        "postgresql": "SELECT extract(epoch FROM clock_timestamp())",
    }
    return float(connection.execute(text(clock[connection.dialect.name])).scalar_one())


def boottime() -> float:
    """Seconds by a clock of this machine that runs on through suspension."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
