"""Tells from a table's log which rows were appended between two versions, if no other row changed."""

from typing import Any
from urllib.parse import unquote

from include.lake import listing
from include.readers.delta_log import DeltaLog

Action = dict[str, Any]


class RecomputeNeeded(Exception):
    """The appended rows of its sources are not enough to refresh a view. str(): why, as a phrase."""


def appended_files(log: DeltaLog, table: str, after: int, until: int) -> list[Action]:
    """Returns the `add` actions of the files with the rows that versions `after` + 1 to `until` have appended.

    Compaction may have moved these rows since: then the files are those that it wrote, if it moved no older row.
    Raises RecomputeNeeded if a version did anything else to the table, or if the log or a file is gone.
    """
    files: dict[str, Action] = {}
    if until < after:
        raise RecomputeNeeded(f"it was made of version {after} of {table}, and this run reads version {until}")
    listed_versions = set(log.versions)
    for version in range(after + 1, until + 1):
        if version not in listed_versions:
            raise RecomputeNeeded(f"version {version} of {table} is gone from its log")
        actions = list(log.actions(version))
        if kind := other_change(actions):
            raise RecomputeNeeded(f"version {version} of {table} ({kind}) is no append")
        _follow(actions, files)
    if gone := listing.missing(log.table, files):
        raise RecomputeNeeded(f"VACUUM deleted {gone[0]} of {table}, which held appended rows")
    return list(files.values())


def other_change(actions: list[Action]) -> str | None:
    """Returns the operation of a commit that changed or removed rows, columns or properties; None for any other."""
    operation: str = next((action["commitInfo"].get("operation") for action in actions if "commitInfo" in action), "")
    removes_rows = any(action["remove"].get("dataChange", True) for action in actions if "remove" in action)
    if operation == "RESTORE" or removes_rows or any("metaData" in action for action in actions):
        return operation or "unknown"
    return None


def appends_rows(actions: list[Action]) -> bool:
    return any(action["add"].get("dataChange", True) for action in actions if "add" in action)


def _follow(actions: list[Action], files: dict[str, Action]) -> None:
    """Adds the files that a commit appended, and replaces those that it compacted. files: by path."""
    moved = {unquote(action["remove"]["path"]) for action in actions if "remove" in action}
    adds = {unquote(action["add"]["path"]): action for action in actions if "add" in action}
    # A compaction of appended and older rows mixes them. Then the appended ones are read from where they were.
    moves_appended_rows_only = bool(moved) and moved <= files.keys()
    if moves_appended_rows_only:
        for path in moved:
            del files[path]
    for path, action in adds.items():
        if action["add"].get("dataChange", True) or moves_appended_rows_only:
            files[path] = action
