"""Decides where a table is compacted: by its own stream, or in a window."""

from enum import StrEnum

from include.spec import Append, Table


class CompactionPlace(StrEnum):
    """INLINE: by its own stream, between two batches. WINDOW: with no other writer."""

    INLINE = "inline"
    WINDOW = "in a window"


def needs_exclusive_write(flow: Table) -> bool:
    """Returns whether a batch of the flow excludes every other writer of its table.

    A table with one append flow has no other writer but jobs, and these take the table alone. Of several flows, one
    commits at a time: on a local disk and on S3, two processes that commit at once can overwrite each other.
    """
    return flow.branch is not None or not isinstance(flow.write, Append)


def place_of_compaction(table: Table) -> tuple[CompactionPlace, str]:
    """Returns where the table is compacted, and why, in words."""
    if table.merges_in_windows:
        return CompactionPlace.WINDOW, "its upserts are gathered for windows, so it is compacted where they are merged"
    if table.is_view:
        return CompactionPlace.WINDOW, "each refresh has it to itself, and so has the window"
    if not isinstance(table.write, Append):
        interval = f"every {table.maintain.every_batches} batches"
        return CompactionPlace.INLINE, f"a stream upserts it all the time, so that stream compacts it {interval}"
    if table.has_quarantine:
        return CompactionPlace.WINDOW, "a batch that is tried again rewrites its quarantine, which goes with it"
    return CompactionPlace.WINDOW, "two processes that commit at once can overwrite each other, on disk as on S3"
