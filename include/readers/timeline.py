"""The versions of a table that still count, and where its flows stood at each: from its log, without a JVM."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cache
from typing import Any

from include.readers import active_commits
from include.readers.batches import BACKFILL
from include.readers.delta_backlog import CHANGES_DATA, Feed
from include.readers.delta_log import Commit, Log
from include.settings import settings
from include.spec import Delta


@dataclass(frozen=True)
class Stand:
    """A flow's newest batch up to some version of its table: what its commit, at `version`, says of itself."""

    version: int
    stamp: dict[str, Any]

    @property
    def batch(self) -> tuple[int, int]:
        """Generation and batch."""
        return int(self.stamp["generation"]), int(self.stamp["batch"])


class Timeline:
    """A stored table as its log was listed when this was made. Raises Unreachable, and Broken for a damaged log."""

    def __init__(self, table: str) -> None:
        self.table = table
        self.log = Log(settings().table_path(table))
        found = [commit for commit, stands in active_commits.commits(self.log) if stands]
        self.commits: dict[int, Commit] = {commit.version: commit for commit in reversed(found)}
        self.versions = list(self.commits)
        self._batches: dict[str, list[Stand]] = {}
        for commit in self.commits.values():
            if {"flow", "generation", "batch"} <= commit.metadata.keys():
                stand = Stand(commit.version, commit.metadata)
                self._batches.setdefault(commit.metadata["flow"], []).append(stand)
        self.content = cache(self._content)

    def newest_at(self, moment: float) -> int | None:
        """The newest version of that moment, in seconds since 1970, or of an earlier one."""
        return next((one for one in reversed(self.versions) if self.commits[one].timestamp <= moment), None)

    def before(self, version: int) -> int | None:
        place = bisect_left(self.versions, version)
        return self.versions[place - 1] if place else None

    def stand(self, flow: str, version: int) -> Stand | None:
        """Where a flow stood when the table was at this version; None where it had written nothing."""
        batches = self._batches.get(flow, [])
        place = bisect_right(batches, version, key=lambda one: one.version)
        return batches[place - 1] if place else None

    def unsettled(self, version: int) -> int | None:
        """The version at which a full refresh has replaced the table, where its flows' own commits come behind this."""
        for one in reversed(self.versions[: bisect_right(self.versions, version)]):
            anew = (self.commits[one].metadata.get(BACKFILL) or {}).get("anew") or {}
            stands = ((said, self.stand(flow, version)) for flow, said in anew.items())
            if any(stand is None or stand.batch[0] < int(said["generation"]) for said, stand in stands):
                return one
        return None

    def after(self, version: int) -> list[Commit]:
        return [commit for number, commit in self.commits.items() if number > version]

    def _content(self, version: int) -> int:
        """The version that changed rows last, up to this one: two versions of one content hold the same. -1: none has.

        One that a RESTORE made has the content of the version it went back to.
        """
        for one in reversed(self.versions[: bisect_right(self.versions, version)]):
            to = active_commits.restored_to(self.log, self.commits[one])
            if to is not None:
                return self.content(to)
            if self.changes(one):
                return one
        return -1

    def changes(self, version: int) -> bool:
        """Whether it changed rows; what compacts only moves them."""
        return next(iter(self.log.actions(version, CHANGES_DATA)), None) is not None

    def newest_of(self, content: int, up_to: int) -> int | None:
        """The newest version up to one that holds no more than this content."""
        held = (one for one in reversed(self.versions) if one <= up_to and self.content(one) <= content)
        return next(held, None)

    def read_to(self, offset: dict[str, Any], source: Delta) -> int | None:
        """The content that a stream of this table has read to its end; None where it stands within a version, or has
        read what counts no more.
        """
        feed = Feed(self.log, source.changes)
        version = int(offset["reservoirVersion"])
        if not offset.get("isStartingVersion") and int(offset["index"]) < 0:
            version -= 1
        elif feed.left_of(offset):
            return None
        stands = self.before(version + 1)
        if stands is None:
            return -1
        undone = (one for one in self.log.versions if stands < one <= version)
        return None if any(feed.brings(one) for one in undone) else self.content(stands)
