"""Tells from a table's log which commits are active, and which rows were appended between two versions.

A RESTORE undoes the commits after the version that it restores.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from include.delta.delta_log import Commit, DeltaLog
from include.errors import FlowBroken
from include.lake import directories

# The userMetadata key that names the rewind which made a RESTORE.
REWIND = "rewind"
# The userMetadata key of a commit that took out the rows of erased subjects.
ERASED = "erased"


def commits_with_activity(log: DeltaLog) -> Iterator[tuple[Commit, bool]]:
    """Yields each commit, newest first, with whether it is active. Commits are read lazily."""
    newest_active = log.newest
    for commit in log.commits():
        is_active = commit.version <= newest_active
        yield commit, is_active
        restored = restored_to(log, commit) if is_active else None
        newest_active = newest_active if restored is None else min(newest_active, restored)


def undone_by(log: DeltaLog, version: int) -> Commit | None:
    """Returns the RESTORE that undid a version; None where the version is active."""
    for commit, is_active in commits_with_activity(log):
        if commit.version <= version:
            break
        restored = restored_to(log, commit) if is_active else None
        if restored is not None and restored < version:
            return commit
    return None


def restored_by_hand(log: DeltaLog, versions: Iterable[int]) -> Commit | None:
    """Returns the first RESTORE among these versions that no rewind has made; None where there is none."""
    commits = map(log.commit, versions)
    return next((commit for commit in commits if commit.operation == "RESTORE" and REWIND not in commit.metadata), None)


def restored_error(flow: str, lacks: str) -> FlowBroken:
    """lacks: the batches that the table lacks, in words."""
    return FlowBroken(
        f"{flow}: somebody has restored its table by a RESTORE, and it lacks what the flow has written {lacks}: action "
        f"reset checkpoint reads that again; jobs/rewind.py restores a table together with its flows",
        "TABLE_RESTORED",
    )


def overwrites(commit: Commit) -> bool:
    """Returns whether a commit replaced all earlier rows of the table."""
    if "REPLACE TABLE" in commit.operation:
        return True
    parameters = commit.parameters
    return (
        commit.operation == "WRITE"
        and parameters.get("mode") == "Overwrite"
        and parameters.get("predicate") in (None, "[]")
    )


def restored_to(log: DeltaLog, commit: Commit) -> int | None:
    """Returns the version that a RESTORE restored; None for any other commit."""
    if commit.operation != "RESTORE":
        return None
    version, timestamp = commit.parameters.get("version"), commit.parameters.get("timestamp")
    return int(version) if version is not None else _version_at(log, str(timestamp), commit.version)


def _version_at(log: DeltaLog, timestamp: str, before: int) -> int:
    """Returns the newest version at a timestamp, or `before` where there is none.

    The log of a RESTORE TO TIMESTAMP does not name the version.
    """
    try:
        restored_at = datetime.fromisoformat(timestamp)
    except ValueError:
        return before
    seconds = (restored_at if restored_at.tzinfo else restored_at.replace(tzinfo=UTC)).timestamp()
    earlier = [version for version in log.versions[: log.committed_by(seconds)] if version < before]
    return earlier[-1] if earlier else before


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
    if gone := directories.missing(log.table, files):
        raise RecomputeNeeded(f"VACUUM deleted {gone[0]} of {table}, which held appended rows")
    return list(files.values())


def other_change(actions: list[Action]) -> str | None:
    """Returns the operation of a commit that changed or removed rows, columns or properties; None for any other."""
    operation: str = next((action["commitInfo"].get("operation") for action in actions if "commitInfo" in action), "")
    stamps = (action["commitInfo"].get("userMetadata") or "" for action in actions if "commitInfo" in action)
    if any(f'"{ERASED}"' in stamp for stamp in stamps):
        return "ERASE"
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
