"""The key of pseudonyms as a file: it is written once, and destroyed for good. The audit has both."""

import hashlib
import secrets

from sqlalchemy import Engine

from include import private_files
from include.control.store import audit, database
from include.errors import UsageError
from include.settings import settings

CREATE, DESTROY = "create pseudonym key", "destroy pseudonym key"
KEY_BYTES = 32


def key_id() -> str | None:
    """Names the key without telling it; None if there is none. Raises UsageError if it cannot be read."""
    file = settings().pseudonym_key
    try:
        return hashlib.sha256(b"id of " + file.read_bytes().strip()).hexdigest()[:16] if file.exists() else None
    except OSError as error:
        raise UsageError(f"{file} cannot be read ({error.strerror}): correct its permissions") from error


def create(engine: Engine, requester: str, reason: str) -> str:
    """Write a random key, and return its id. Raises UsageError if there is one, and Unreachable."""
    file = settings().pseudonym_key
    if file.exists():
        raise UsageError(
            f"{file} is there, and another key makes other pseudonyms of the same values: destroy it first"
        )
    with database.transaction(engine) as connection:
        file.parent.mkdir(parents=True, exist_ok=True)
        private_files.create(file)
        file.write_text(f"{secrets.token_hex(KEY_BYTES)}\n")
        number = str(key_id())
        audit.record(connection, requester, CREATE, file.name, reason, f"key {number} is written")
    return number


def destroy(engine: Engine, requester: str, reason: str, approver: str | None = None) -> str:
    """Overwrite and delete the key, and return its id. Raises UsageError if there is none here, and Unreachable."""
    file = settings().pseudonym_key
    if file.is_symlink():
        raise UsageError(f"{file} is a link to {file.readlink()}, which another program keeps: destroy the key there")
    if (number := key_id()) is None:
        raise UsageError(f"{file} is missing: there is no key to destroy")
    with database.transaction(engine) as connection:
        result = f"key {number} is destroyed, and its pseudonyms cannot be computed from values any more"
        audit.record(connection, requester, DESTROY, file.name, reason, result, approver=approver)
        # Inside the transaction: the audit must not say so of a key that is still there.
        private_files.destroy(file)
    return number
