"""Files with secrets, which only the user of the platform may read."""

import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path

KEY_BYTES = 32


def create(file: Path) -> None:
    """Create the file, or restrict an existing one, before anybody writes a secret into it."""
    with suppress(FileExistsError):
        os.close(os.open(file, os.O_CREAT | os.O_EXCL, 0o600))
    restrict(file)


def restrict(path: Path) -> None:
    """Remove all permissions of other users. Harmless if the file is missing, or belongs to somebody else."""
    with suppress(OSError):
        mode = path.stat().st_mode
        if mode & 0o077:
            path.chmod(mode & 0o700)


def destroy(file: Path) -> None:
    """Delete the file and its content, which a file system may keep of a file that is only deleted."""
    with file.open("r+b") as content:
        content.write(bytes(file.stat().st_size))
        content.flush()
        os.fsync(content.fileno())
    file.unlink()


def create_key(file: Path) -> None:
    """Create a file with 32 random bytes, unless it is there. Whoever does so at once has the same key."""
    if file.exists():
        return
    # Under another name first: nobody may read half a key. This file, too, is for its owner alone.
    descriptor, draft = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    with os.fdopen(descriptor, "wb") as content:
        content.write(secrets.token_bytes(KEY_BYTES))
    with suppress(FileExistsError):
        os.link(draft, file)
    Path(draft).unlink()
