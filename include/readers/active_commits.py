"""Which commits of a table still count: a RESTORE takes back what came between."""

from collections.abc import Iterator
from datetime import UTC, datetime

from include.readers.delta_log import Commit, Log

# The key under which a commit that put a table back to a version says which rewind did it.
REWIND = "rewind"


def commits(log: Log) -> Iterator[tuple[Commit, bool]]:
    """Newest first, each read when it is asked for, with whether no RESTORE has undone it."""
    alive_to = log.newest
    for commit in log.commits():
        stands = commit.version <= alive_to
        yield commit, stands
        to = restored_to(log, commit) if stands else None
        alive_to = alive_to if to is None else min(alive_to, to)


def undone_by(log: Log, version: int) -> Commit | None:
    """The RESTORE that took a version back; None where it still counts."""
    for commit, stands in commits(log):
        if commit.version <= version:
            break
        to = restored_to(log, commit) if stands else None
        if to is not None and to < version:
            return commit
    return None


def overwrites(commit: Commit) -> bool:
    """Whether nothing that was in the table before is in it behind this commit."""
    if "REPLACE TABLE" in commit.operation:
        return True
    said = commit.parameters
    return commit.operation == "WRITE" and said.get("mode") == "Overwrite" and said.get("predicate") in (None, "[]")


def restored_to(log: Log, commit: Commit) -> int | None:
    """The version that a RESTORE went back to; None for any other commit."""
    if commit.operation != "RESTORE":
        return None
    version, moment = commit.parameters.get("version"), commit.parameters.get("timestamp")
    return int(version) if version is not None else _version_at(log, str(moment), commit.version)


def _version_at(log: Log, moment: str, before: int) -> int:
    """RESTORE by time keeps no version in the log, so it is what was newest then; its own where nobody can say."""
    try:
        at = datetime.fromisoformat(moment)
    except ValueError:
        return before
    seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    earlier = (log.commit(one) for one in reversed(log.versions) if one < before)
    return next((one.version for one in earlier if one.timestamp <= seconds), before)
