"""A copy of this checkout, in which a test may change files."""

import shutil
import subprocess
from pathlib import Path

from tests.conftest import ROOT


def copy_to(directory: Path, leaves_out: str = "") -> Path:
    """Copy all files that Git tracks or would add, and return the directory.

    leaves_out: a folder to pass over, such as `tests/mistakes/`.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file() and not (leaves_out and name.startswith(leaves_out)):
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, directory / name)
    return directory
