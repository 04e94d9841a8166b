"""The audit: who has changed what, when and why, and with which result."""

from sqlalchemy import Connection

from include.control.store import database
from include.control.store.schema import audits


def record(
    connection: Connection,
    requester: str,
    action: str,
    target: str,
    reason: str,
    result: str,
    has_effect: bool = True,
) -> None:
    """Write one line of the audit. result: a sentence."""
    values = {"at": database.now(connection), "who": requester, "action": action, "target": target, "reason": reason}
    connection.execute(audits.insert().values(result=result, has_effect=has_effect, **values))
