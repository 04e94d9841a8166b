"""Files with secrets, which belong to whoever runs the platform alone."""

import os
from contextlib import suppress
from pathlib import Path


def create(file: Path) -> None:
    """Before anybody writes a secret into it, whether it is new or was open to others so far."""
    with suppress(FileExistsError):
        os.close(os.open(file, os.O_CREAT | os.O_EXCL, 0o600))
    close(file)


def close(path: Path) -> None:
    """Nobody else may read it any more. Harmless where there is none, or where it is somebody else's."""
    with suppress(OSError):
        mode = path.stat().st_mode
        if mode & 0o077:
            path.chmod(mode & 0o700)
