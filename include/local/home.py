"""The home directory: made with a mark, and deleted by `make clean` only with it.

Runs on a bare Python, like `include.local.install`.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from include.errors import SetupError, report
from include.settings import ROOT, settings

MARK = "sluice-home"
# What earlier releases, which set no mark, have written into a home. Files of SQLite have further endings.
KNOWN = {
    *("airflow", "bin", "cache", "checkpoints", "conf", "control.db", "definitions", "env.sh", "jars", "kafka"),
    *("kafka-clusters", "lake", "landing", "lineage", "log", "progress", "run", "schemas", "store", "tmp", "venv"),
}
# Of these, each one tells a home from a folder of others.
EVIDENCE = ("env.sh", "venv/installed-lock.sha256", "run/up.lock", "control.db")
# They mean something else in PATH and class paths, in settings of Kafka, SQLite and Airflow, in the SQL of Delta, or in
# the addresses of delta-rs.
FORBIDDEN = ":,?#$`%[]\\^|\n"


def create(home: Path) -> None:
    """Makes the directory, with the mark if it is new or empty. Raises SetupError."""
    try:
        found = [character for character in FORBIDDEN if character in str(home)]
        if found and not home.exists():
            raise SetupError(f"SLUICE_HOME is {str(home)!r}, which has {found[0]!r} in it: choose another name")
        home.mkdir(parents=True, exist_ok=True)
        if not any(home.iterdir()):
            (home / MARK).write_text("This directory was made by Sluice. `make clean` deletes it.\n")
    except OSError as error:
        raise unwritable(home, error) from error


def unwritable(home: Path, error: OSError) -> SetupError:
    """The error for a home in which nothing can be written."""
    return SetupError(
        f"SLUICE_HOME is {home}, where nothing can be written ({error.strerror}): choose a directory of yours, or "
        f"correct its permissions"
    )


def clean() -> None:
    """Deletes the home with all in it. Raises SetupError if it is not certain that Sluice has made it."""
    named = Path(os.environ.get("SLUICE_HOME") or ROOT / "var").absolute()
    home = settings().home
    if not os.path.lexists(named):
        print(f"there is nothing to delete: {named} does not exist", flush=True)
        return
    if named.is_symlink():
        raise SetupError(f"SLUICE_HOME is {named}, a link to {home}, and nothing was deleted: name {home} itself")
    if reason := refusal(home):
        raise SetupError(f"SLUICE_HOME is {home}, which {reason}, and nothing was deleted: delete by hand what may go")
    try:
        shutil.rmtree(home)
    except OSError as error:
        raise SetupError(f"{error.filename} could not be deleted ({error.strerror}): do that as its owner") from error
    print(f"deleted {home}", flush=True)


def refusal(home: Path) -> str | None:
    """Why the directory must not be deleted, as a phrase; None if Sluice has made it."""
    if not home.is_dir():
        return "is no directory"
    if home == ROOT or home in ROOT.parents:
        return "holds this checkout"
    if home == Path.home() or home in Path.home().parents:
        return "holds your own home directory"
    if (home / MARK).is_file():
        return None
    names = sorted(entry.name for entry in home.iterdir())
    if not any((home / name).is_file() for name in EVIDENCE):
        return "bears no mark of Sluice"
    foreign = [name for name in names if name not in KNOWN and not name.startswith("control.db")]
    return f"bears no mark of Sluice and holds {foreign[0]}" if foreign else None


if __name__ == "__main__":
    report(clean)
