"""Tells how far a rewind has come, from the logs of its tables and the checkpoints of their flows."""

from collections.abc import Iterable, Iterator
from itertools import takewhile

from include.checkpoints.checkpoint_files import newest_generation
from include.control.jobs.rewinds import RestorePoint, Rewind
from include.delta import commit_history
from include.delta.commit_history import REWIND
from include.delta.delta_log import DeltaLog
from include.flows.timeline import Timeline
from include.recovery import rewind_plan
from include.settings import settings
from include.spec import Table


def versions(part: RestorePoint, table: Table) -> dict[str, int]:
    """Returns the versions to which the companions and the table go back, in the order of their restores."""
    companions = {table.quarantine: part.quarantine, table.retained: part.retained}
    return {name: version for name, version in companions.items() if version is not None} | {table.name: part.version}


def holds_version(name: str, version: int) -> bool:
    """Returns whether the table holds the rows of that version, and no later batch counts.

    Commits that only move rows do not matter. A batch that has changed no row matters: its flow has read rows that the
    rewind takes back.
    """
    timeline = Timeline(name)
    if timeline.content(timeline.versions[-1]) != timeline.content(version):
        return False
    commits = commit_history.commits_with_activity(DeltaLog(settings().table_path(name)))
    later = takewhile(lambda entry: entry[0].version > version, commits)
    return not any(is_active and "batch" in commit.metadata for commit, is_active in later)


def was_restored(name: str, rewind: Rewind) -> bool:
    log = DeltaLog(settings().table_path(name))
    return any((commit.metadata.get(REWIND) or {}).get("key") == rewind.key for commit in log.commits())


def flows_to_renew(rewind: Rewind, tables: Iterable[Table]) -> Iterator[Table]:
    """Yields the flows of these tables that must still begin a new generation.

    These are the flows that write a restored table, and the flows that read one.
    """
    restored = {name for name in rewind.cut if settings().is_stored(name) and was_restored(name, rewind)}
    for table in tables:
        if table.name not in restored and not rewind_plan.reads(table, restored):
            continue
        for flow in table.flows:
            old_generation = rewind.cut[table.name].generations.get(flow.flow)
            newest = newest_generation(settings().checkpoints(flow.flow))
            if old_generation is not None and newest is not None and newest <= old_generation:
                yield flow
