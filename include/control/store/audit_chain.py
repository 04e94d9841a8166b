"""The hashes that chain the rows of the audit: each is of a row and of the hash of the row before it.

There are two chains, because old rows are deleted from the beginning of a chain alone: what persons and drivers did is
kept for longer than what a schedule did. The newest row that is too old stays. It shows that the rows before it were
old enough to be deleted.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select, text, update

from include import retention
from include.control.store.schema import audits

DAY_SECONDS = 86_400.0
# The predecessor of the first row.
NONE_BEFORE = ""


class Chain(StrEnum):
    """COMMANDS: of persons and drivers. ROUTINE: of schedules, and what the supervisor decided without an effect."""

    COMMANDS = "commands"
    ROUTINE = "routine"

    @property
    def kept_days(self) -> int:
        return retention.AUDIT_DAYS if self is Chain.COMMANDS else retention.ROUTINE_DAYS

    @classmethod
    def of(cls, requester: str, has_effect: bool | None) -> "Chain":
        """The chain of a new row."""
        is_routine = requester == SCHEDULE or (requester == SCALING and has_effect is False)
        return cls.ROUTINE if is_routine else cls.COMMANDS


# The requesters that are no persons.
SCHEDULE, SCALING = "schedule", "scaling"
# What `seal` writes.
_SEALED = ("who", "approver", "chain", "previous_hash", "hash")
# In this order in the hash. A change of the list would change the hash of every row.
_HASHED = ("chain", "at", "who", "approver", "action", "target", "reason", "result", "has_effect")


class Kind(StrEnum):
    """What verification finds."""

    CHANGED = "changed"
    REMOVED = "removed"
    INSERTED = "inserted"
    MOVED = "moved"


@dataclass(frozen=True)
class Finding:
    """number: of the row of the table `audit` where it shows. words: a sentence."""

    kind: Kind
    number: int
    words: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.words}"


@dataclass(frozen=True)
class Verification:
    """heads: by chain, the hash of its newest row. rows: how many were read."""

    findings: list[Finding]
    heads: dict[str, str]
    rows: int


def digest(previous_hash: str, values: Any) -> str:
    """The hash of a row after the row with `previous_hash`. values: by name, of `_HASHED`."""
    hashed = [previous_hash, *(values[name] for name in _HASHED)]
    return hashlib.sha256(json.dumps(hashed, separators=(",", ":")).encode()).hexdigest()


def chained(rows: Iterable[dict[str, Any]], heads: dict[str, str]) -> Iterator[dict[str, Any]]:
    """The rows with their chain and hashes. heads: by chain, the hash of its newest row; it follows the rows."""
    for row in rows:
        values = {**row, "chain": str(Chain.of(row["who"], row["has_effect"]))}
        previous_hash = heads.get(values["chain"], NONE_BEFORE)
        heads[values["chain"]] = digest(previous_hash, values)
        yield {**values, "previous_hash": previous_hash, "hash": heads[values["chain"]]}


def heads(connection: Connection) -> dict[str, str]:
    """By chain, the hash of its newest row."""
    newest = {
        chain: select(audits.c.hash).where(audits.c.chain == chain).order_by(audits.c.number.desc()).limit(1)
        for chain in Chain
    }
    found = {str(chain): connection.execute(query).scalar_one_or_none() for chain, query in newest.items()}
    return {chain: head for chain, head in found.items() if head}


def seal(connection: Connection) -> None:
    """Chain the rows that a build without chains has written. A migration: later columns are not there yet."""
    stored = "number, at, who, action, target, reason, result, has_effect"
    found = connection.execute(text(f"SELECT {stored} FROM audit ORDER BY number")).mappings().all()
    rows = ({**row, **_approver(row["who"]), "has_effect": _boolean(row["has_effect"])} for row in found)
    changes = [
        {"of": row["number"], **{f"new_{name}": row[name] for name in _SEALED}} for row in chained(list(rows), {})
    ]
    if changes:
        statement = update(audits).where(audits.c.number == bindparam("of"))
        connection.execute(statement.values({name: bindparam(f"new_{name}") for name in _SEALED}), changes)


def _approver(who: str) -> dict[str, str | None]:
    # Until this version, one name stood behind the other.
    requester, _, approver = who.partition(", approved by ")
    return {"who": requester, "approver": approver or None}


def _boolean(stored: Any) -> bool | None:
    return None if stored is None else bool(stored)


def verify(connection: Connection, now_seconds: float) -> Verification:
    """Compare each row with its hash, and each hash with that of the row before it.

    Whoever can write to the database can replace a whole chain, or remove its newest rows. A head that somebody has
    kept elsewhere shows that: see `holds`.
    """
    rows = connection.execute(select(audits).order_by(audits.c.number)).all()
    findings = [_unchained(row) for row in rows if row.hash is None or row.chain not in set(Chain)]
    newest: dict[str, str] = {}
    for chain in Chain:
        linked = [row for row in rows if row.hash is not None and row.chain == chain]
        if linked:
            newest[str(chain)] = linked[-1].hash
            findings += [*_changed(linked), *_broken(linked, now_seconds - chain.kept_days * DAY_SECONDS)]
    return Verification(sorted(findings, key=lambda finding: finding.number), newest, len(rows))


def holds(connection: Connection, head: str) -> bool:
    """Whether a row has this hash."""
    return connection.execute(select(audits.c.number).where(audits.c.hash == head)).first() is not None


def _named(row: Row[Any]) -> str:
    return f"row {row.number} ({row.action} {row.target} by {row.who})"


def _unchained(row: Row[Any]) -> Finding:
    words = f"{_named(row)} carries no hash: it was inserted by hand, or by a process of a build without the chain"
    return Finding(Kind.INSERTED, row.number, words)


def _changed(rows: Iterable[Row[Any]]) -> Iterator[Finding]:
    for row in rows:
        if digest(row.previous_hash, row._mapping) != row.hash:
            yield Finding(
                Kind.CHANGED, row.number, f"{_named(row)} is not as it was written: its hash is of other values"
            )


def _broken(rows: Sequence[Row[Any]], oldest_seconds: float) -> Iterator[Finding]:
    """Follow the hashes from the newest row back to the first. oldest_seconds: a chain may begin with an older row."""
    place_of = {row.hash: place for place, row in enumerate(rows)}
    unseen = set(range(len(rows)))
    place = len(rows) - 1
    while True:
        unseen.discard(place)
        row = rows[place]
        before = place_of.get(row.previous_hash)
        if before is not None and before in unseen:
            if before > place:
                yield Finding(Kind.MOVED, row.number, f"{_named(row)} was written after {_named(rows[before])}")
            place = before
            continue
        older = max((other for other in unseen if other < place), default=None)
        yield from _gap(row, rows[older] if older is not None else None, oldest_seconds)
        if older is None:
            break
        place = older
    for place in sorted(unseen):
        row = rows[place]
        yield Finding(Kind.INSERTED, row.number, f"{_named(row)} was inserted or moved: no row continues it")


def _gap(row: Row[Any], older: Row[Any] | None, oldest_seconds: float) -> Iterator[Finding]:
    """row: whose predecessor is not there. older: the newest row before it that is."""
    if older is not None:
        words = f"{_named(row)} does not continue {_named(older)}: rows between were removed, or one was replaced"
        yield Finding(Kind.REMOVED, row.number, words)
    elif row.previous_hash != NONE_BEFORE and row.at >= oldest_seconds:
        yield Finding(Kind.REMOVED, row.number, f"rows before {_named(row)} were removed before they were old enough")
