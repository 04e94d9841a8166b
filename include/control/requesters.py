"""The persons who ask for something outside of Airflow, and what the audit says of it."""

import getpass
import os

from sqlalchemy import Engine

from include.control.store import audit, database

# Actions of the audit, also where Airflow asks for them.
BACKFILL, MAINTAIN, REFRESH, REPLAY = "backfill", "maintain", "refresh", "replay quarantine"


def system_user() -> str:
    """The name of the system's user at the command line."""
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):
        # A container's user may have no name.
        return f"user {os.getuid()}"


def record(engine: Engine, action: str, target: str, reason: str, result: str = "asked for by hand") -> None:
    """Write into the audit what the system's user asks for. result: a sentence. Raises Unreachable."""
    with database.transaction(engine) as connection:
        audit.record(connection, system_user(), action, target, reason, result)
