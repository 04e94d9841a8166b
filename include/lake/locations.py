"""Where the lake of this installation holds its tables and checkpoints, and whether its store answers.

`config` is another installation than that of this process.
"""

from pathlib import Path

from include.errors import Unreachable
from include.lake import outages, paths
from include.lake.paths import LakePath, ObjectPath
from include.settings import Settings, settings


def lake(config: Settings | None = None) -> LakePath:
    """The directory that holds a directory for each layer."""
    return paths.parse((config or settings()).lake)


def table_path(table: str, config: Settings | None = None) -> LakePath:
    """The path of the Delta table `<layer>.<name>`."""
    layer, name = table.split(".")
    return lake(config) / layer / name


def is_stored(table: str, config: Settings | None = None) -> bool:
    """Whether the Delta table `<layer>.<name>` exists: a first commit that was killed may leave an empty log."""
    return paths.holds_numbered(table_path(table, config) / "_delta_log")


def all_checkpoints(config: Settings | None = None) -> LakePath:
    """The directory that holds a directory for each flow."""
    return paths.parse((config or settings()).all_checkpoints)


def checkpoints(flow: str, config: Settings | None = None) -> LakePath:
    """The directory that holds one numbered checkpoint for each generation of a flow."""
    return all_checkpoints(config) / flow


def checkpoint_lock(flow: str) -> Path:
    """The file that a flow's driver locks. A store has no locks, so there it excludes this machine's drivers."""
    directory = checkpoints(flow)
    return (settings().home / "checkpoints" / flow if isinstance(directory, ObjectPath) else directory) / "lock"


def outage() -> Unreachable | None:
    """Asks the lake's store once, with little patience, and returns its error; None if it answers or is a disk.

    After an error, the lake's other readers in this process fail at once for some seconds.
    """
    outages.remember(None)
    try:
        if isinstance(root := lake(), ObjectPath):
            root.probe()
    except Unreachable as error:
        outages.remember(error)
        return error
    return None


def require_lake() -> None:
    """Raises Unreachable if the lake's store does not answer."""
    if error := outage():
        raise error
