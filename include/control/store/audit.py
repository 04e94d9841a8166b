"""The audit: who has changed what, when and why, who approved it, and with which result."""

from functools import partial
from typing import Any

from sqlalchemy import Connection, select

from include.control.store import audit_chain, database
from include.control.store.audit_chain import SCALING as SCALING
from include.control.store.audit_chain import SCHEDULE as SCHEDULE
from include.control.store.schema import audits
from include.control.store.storable_text import storable


def record(
    connection: Connection,
    requester: str,
    action: str,
    target: str,
    reason: str,
    result: str,
    has_effect: bool = True,
    approver: str | None = None,
) -> None:
    """Write one row of the audit at the end of the transaction. result: a sentence. approver: None: none was needed."""
    texts = {"who": requester, "approver": approver, "action": action, "target": target, "reason": reason}
    values = {name: value and storable(value) for name, value in {**texts, "result": result}.items()}
    database.before_commit(connection, partial(_append, connection, {**values, "has_effect": has_effect}))


def is_recorded(connection: Connection, requester: str, action: str, target: str, reason: str, result: str) -> bool:
    """Whether the audit has such a row."""
    texts = {"who": requester, "action": action, "target": target, "reason": reason, "result": result}
    is_same = [audits.c[name] == storable(value) for name, value in texts.items()]
    return connection.execute(select(audits.c.number).where(*is_same).limit(1)).first() is not None


def _append(connection: Connection, row: dict[str, Any]) -> None:
    # Taken last: a transaction that waits for another lock while it holds this one could block the one that has it.
    database.serialize(connection, "audit")
    rows = audit_chain.chained([{**row, "at": database.now(connection)}], audit_chain.heads(connection))
    connection.execute(audits.insert(), list(rows))
