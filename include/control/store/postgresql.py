"""A PostgreSQL that hangs, behind a network that swallows packets, must not hang a driver; nor a driver the others."""

import time
from functools import partial
from typing import Any

from sqlalchemy import Engine, event

from include.control.store import timeouts

# A stopped process loses its transaction soon enough for those who wait for its locks to get them in time.
SERVER_SIDE = {
    "idle_in_transaction_session_timeout": timeouts.BUSY_TIMEOUT_SECONDS * 500,
    "lock_timeout": timeouts.BUSY_TIMEOUT_SECONDS * 1000,
    "statement_timeout": timeouts.BUSY_TIMEOUT_SECONDS * 1000,
}
# So that a connection that died while it lay idle is known to be dead when it is needed.
NETWORK = {
    "keepalives_idle": timeouts.BUSY_TIMEOUT_SECONDS,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": timeouts.BUSY_TIMEOUT_SECONDS * 1000,
    # The least that psycopg allows.
    "connect_timeout": 2,
}


def prepare(engine: Engine) -> None:
    """Let every connection of `engine` keep to the time a transaction has."""
    # Imported by SQLAlchemy: whoever uses SQLite does not wait for it.
    psycopg: Any = engine.dialect.loaded_dbapi

    @event.listens_for(engine, "do_connect")
    def do_connect(_dialect: Any, _record: Any, arguments: list[Any], options: dict[str, Any]) -> Any:
        if timeouts.seconds_left() == 0:
            raise psycopg.OperationalError("no time left to connect")
        ours = " ".join(f"-c {name}={value}" for name, value in SERVER_SIDE.items())
        options = NETWORK | options | {"options": f"{options.get('options', '')} {ours}"}
        connection = psycopg.connect(*arguments, **options)
        # The one place in which psycopg waits, and by itself for ever: a stopped server's kernel still answers for it.
        connection.wait = partial(_wait, connection, psycopg.OperationalError)
        return connection


def _wait(connection: Any, given_up: type[Exception], answer: Any, interval: float = 0.1) -> Any:
    ends_at = time.monotonic() + timeouts.seconds_left()
    try:
        return type(connection).wait(connection, answer, interval, ends_at - time.monotonic())
    except given_up:
        if time.monotonic() >= ends_at:
            # The answer may still come, and would be taken for that to the next question.
            connection.close()
        raise
