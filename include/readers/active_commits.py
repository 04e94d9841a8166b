"""Tells which commits of a table are active: a RESTORE undoes the commits after the version that it restores."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from include.errors import FlowBroken
from include.readers.delta_log import Commit, DeltaLog

# The userMetadata key that names the rewind which made a RESTORE.
REWIND = "rewind"


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
        f"{flow}: somebody has put its table back by a RESTORE, and it lacks what the flow has written {lacks}: action "
        f"reset checkpoint reads that again; jobs/rewind.py puts a table back together with its flows",
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
    earlier = (log.commit(version) for version in reversed(log.versions) if version < before)
    return next((commit.version for commit in earlier if commit.timestamp <= seconds), before)
