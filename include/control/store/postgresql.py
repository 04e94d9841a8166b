"""Timeouts for PostgreSQL: neither a server that hangs nor a network that drops packets may block a driver."""

import time
from functools import partial
from typing import Any

from sqlalchemy import Engine, event

from include.control.store import timeouts

# The server ends the transaction of a suspended process before those who wait for its locks time out.
SERVER_SIDE = {
    "idle_in_transaction_session_timeout": timeouts.BUSY_TIMEOUT_SECONDS * 500,
    "lock_timeout": timeouts.BUSY_TIMEOUT_SECONDS * 1000,
    "statement_timeout": timeouts.BUSY_TIMEOUT_SECONDS * 1000,
}
# TCP notices that an idle connection has died before it is used.
NETWORK = {
    "keepalives_idle": timeouts.BUSY_TIMEOUT_SECONDS,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": timeouts.BUSY_TIMEOUT_SECONDS * 1000,
    # The minimum of psycopg.
    "connect_timeout": 2,
}


def prepare(engine: Engine) -> None:
    """Limit every connection of `engine` to the time that a transaction may take."""
    # SQLAlchemy has imported it: users of SQLite do not pay for the import.
    psycopg: Any = engine.dialect.loaded_dbapi

    @event.listens_for(engine, "do_connect")
    def do_connect(_dialect: Any, _record: Any, arguments: list[Any], options: dict[str, Any]) -> Any:
        if timeouts.seconds_left() == 0:
            raise psycopg.OperationalError("no time left to connect")
        server_options = " ".join(f"-c {name}={value}" for name, value in SERVER_SIDE.items())
        options = NETWORK | options | {"options": f"{options.get('options', '')} {server_options}"}
        connection = psycopg.connect(*arguments, **options)
        # psycopg waits here without a limit: the kernel of a suspended server still answers TCP.
        connection.wait = partial(_wait, connection, psycopg.OperationalError)
        return connection


def _wait(connection: Any, timeout_error: type[Exception], generator: Any, interval: float = 0.1) -> Any:
    ends_at = time.monotonic() + timeouts.seconds_left()
    try:
        return type(connection).wait(connection, generator, interval, ends_at - time.monotonic())
    except timeout_error:
        if time.monotonic() >= ends_at:
            # The answer may still arrive, and would be read as the answer to the next query.
            connection.close()
        raise
