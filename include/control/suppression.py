"""The suppression list: keyed hashes of the subjects that were erased, by which late copies are recognised.

The key lies in the home, and not in the control database: who has the list alone cannot try names.
"""

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from sqlalchemy import Connection, Engine, select

from include import private_files
from include.control.store import database
from include.control.store.schema import suppressions
from include.errors import FlowBroken
from include.settings import settings


def key_file() -> Path:
    return settings().home / "erasure" / "key"


def create_key() -> None:
    """Create the key, unless there is one."""
    file = key_file()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    private_files.create_key(file)


def key() -> bytes:
    """Raises FlowBroken if it is missing."""
    try:
        found = key_file().read_bytes()
    except OSError:
        found = b""
    if len(found) != private_files.KEY_BYTES:
        raise FlowBroken(
            f"{key_file()}: the key of the suppression list is missing, so nobody can tell the rows of erased subjects "
            f"from others: restore it from the backup",
            "ERASURE_KEY_MISSING",
        )
    return found


def key_id(secret: bytes) -> str:
    """Names a key without telling it."""
    return hashlib.sha256(b"id of " + secret).hexdigest()[:16]


def mac(secret: bytes, subject: str) -> str:
    """The keyed hash of a subject, HMAC-SHA256 in hexadecimal digits."""
    return hmac.new(secret, subject.encode(), hashlib.sha256).hexdigest()


def add(connection: Connection, macs: Iterable[str], secret: bytes, job: int) -> int:
    """Add erased subjects. Returns how many the list did not hold yet."""
    known = set(connection.execute(select(suppressions.c.mac)).scalars())
    new, now = [one for one in dict.fromkeys(macs) if one not in known], database.now(connection)
    for one in new:
        connection.execute(suppressions.insert().values(mac=one, key_id=key_id(secret), job=job, at=now))
    return len(new)


def listed(engine: Engine) -> tuple[bytes, list[str]]:
    """The key, and the hashes on the list; both are empty without erasures.

    Raises FlowBroken if the key is missing, or is not the one of the list, and Unreachable.
    """
    with database.reading(engine) as connection:
        rows = connection.execute(select(suppressions.c.mac, suppressions.c.key_id).order_by(suppressions.c.mac)).all()
    if not rows:
        return b"", []
    secret = key()
    if any(row.key_id != key_id(secret) for row in rows):
        raise FlowBroken(
            f"{key_file()} is another key than the suppression list was made with: restore that one from the backup",
            "ERASURE_KEY_MISSING",
        )
    return secret, [row.mac for row in rows]
