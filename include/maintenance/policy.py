"""Decides where a table is compacted: beside its writers, by its own stream, or in a window."""

from enum import StrEnum

from include.spec import Append, Table


class CompactionPlace(StrEnum):
    """ONLINE: beside its writers. INLINE: by its own stream, between two batches. WINDOW: with no other writer."""

    ONLINE = "online"
    INLINE = "inline"
    WINDOW = "in a window"


def needs_exclusive_write(flow: Table, late_commits_fail: bool) -> bool:
    """Returns whether a batch of the flow excludes every other writer of its table.

    late_commits_fail: a commit fails if another process has made its version. Where it does not, of several flows one
    commits at a time. Flows whose batches could miss each other's rows also do so. A table with one append flow has no
    other writer but jobs, and these take the table alone, or share it.
    """
    if not isinstance(flow.write, Append):
        return True
    return flow.branch is not None and (_reads_itself(flow) or not late_commits_fail)


def place_of_compaction(table: Table, late_commits_fail: bool) -> tuple[CompactionPlace, str]:
    """Returns where the table is compacted, and why, in words. late_commits_fail: as for `needs_exclusive_write`."""
    if table.merges_in_windows:
        return CompactionPlace.WINDOW, "its upserts are gathered for windows, so it is compacted where they are merged"
    if table.is_view:
        return CompactionPlace.WINDOW, "each refresh has it to itself, and so has the window"
    if not isinstance(table.write, Append):
        interval = f"every {table.maintain.every_batches} batches"
        return CompactionPlace.INLINE, f"a stream upserts it all the time, so that stream compacts it {interval}"
    if table.has_quarantine:
        return CompactionPlace.WINDOW, "a batch that is tried again rewrites its quarantine, which goes with it"
    if _reads_itself(table):
        return (
            CompactionPlace.WINDOW,
            "its batches look for their rows in it, and fail if files are replaced meanwhile",
        )
    if late_commits_fail:
        return CompactionPlace.ONLINE, "it is only appended to, and on this store a late commit fails by itself"
    return CompactionPlace.WINDOW, "two processes that commit at once can overwrite each other"


def _reads_itself(table: Table) -> bool:
    return bool(table.expect or (isinstance(table.write, Append) and table.write.unique))
