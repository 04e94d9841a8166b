"""Files with secrets, which only the user of the platform may read."""

import os
from contextlib import suppress
from pathlib import Path


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
