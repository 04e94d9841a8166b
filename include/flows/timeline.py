"""Lists a table's active versions, and the position of its flows at each, from its log, without a JVM."""

from bisect import bisect_left, bisect_right
from functools import cache
from typing import Any

from include.delta import commit_history
from include.delta.backlog import CHANGES_DATA, StreamSource
from include.delta.delta_log import Commit, DeltaLog
from include.flows.batches import BACKFILL
from include.lake import locations
from include.spec import Delta


class Timeline:
    """A stored table's log as listed at construction. versions: active versions, ascending.

    Raises Unreachable where the table is not stored, and FlowBroken for a damaged log.
    """

    def __init__(self, table: str) -> None:
        self.table = table
        self.log = DeltaLog(locations.table_path(table))
        active = [commit for commit, is_active in commit_history.commits_with_activity(self.log) if is_active]
        self.commits: dict[int, Commit] = {commit.version: commit for commit in reversed(active)}
        self.versions = list(self.commits)
        self._batches: dict[str, list[Commit]] = {}
        for commit in self.commits.values():
            if commit.batch:
                self._batches.setdefault(commit.metadata["flow"], []).append(commit)
        self.content = cache(self._content)

    def newest_at(self, moment: float) -> int | None:
        """Returns the newest active version at a moment, in seconds since 1970."""
        version = self.log.version_at(moment)
        return None if version is None else self.before(version + 1)

    def before(self, version: int) -> int | None:
        index = bisect_left(self.versions, version)
        return self.versions[index - 1] if index else None

    def stand(self, flow: str, version: int) -> Commit | None:
        """Returns the commit of a flow's newest batch when the table was at this version; None before the first."""
        batches = self._batches.get(flow, [])
        index = bisect_right(batches, version, key=lambda commit: commit.version)
        return batches[index - 1] if index else None

    def pending_refresh(self, version: int) -> int | None:
        """Returns the version of a full refresh after which the flows had not yet committed in their new generation.

        None where there is no such refresh up to `version`.
        """
        for number in reversed(self.versions[: bisect_right(self.versions, version)]):
            refreshed_flows = (self.commits[number].metadata.get(BACKFILL) or {}).get("anew") or {}
            places = ((int(begun["generation"]), self.stand(flow, version)) for flow, begun in refreshed_flows.items())
            if any(batch is None or int(batch.metadata["generation"]) < generation for generation, batch in places):
                return number
        return None

    def after(self, version: int) -> list[Commit]:
        return [commit for number, commit in self.commits.items() if number > version]

    def _content(self, version: int) -> int:
        """Returns the newest version up to this one that changed rows; -1 where there is none.

        Versions with the same content hold the same rows. A RESTORE has the content of the version that it restored.
        """
        for number in reversed(self.versions[: bisect_right(self.versions, version)]):
            restored = commit_history.restored_to(self.log, self.commits[number])
            if restored is not None:
                return self.content(restored)
            if self.changes(number):
                return number
        return -1

    def changes(self, version: int) -> bool:
        """Returns whether the version changed rows. Compaction only moves them."""
        return next(iter(self.log.actions(version, CHANGES_DATA)), None) is not None

    def newest_of(self, content: int, up_to: int) -> int | None:
        """Returns the newest version up to `up_to` whose content is not newer than this one."""
        candidates = (
            version for version in reversed(self.versions) if version <= up_to and self.content(version) <= content
        )
        return next(candidates, None)

    def read_to(self, offset: dict[str, Any], source: Delta) -> int | None:
        """Returns the content that a stream at this offset has read completely.

        None where the offset lies within a version, or the stream has read undone versions.
        """
        feed = StreamSource(self.log, source.changes)
        version = int(offset["reservoirVersion"])
        if not offset.get("isStartingVersion") and int(offset["index"]) < 0:
            version -= 1
        elif feed.left_of(offset):
            return None
        active_version = self.before(version + 1)
        if active_version is None:
            return -1
        undone = (number for number in self.log.versions if active_version < number <= version)
        return None if any(feed.brings(number) for number in undone) else self.content(active_version)
