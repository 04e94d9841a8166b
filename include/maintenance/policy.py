"""Decides where a table is compacted: online, inside its stream, or in a window."""

from enum import StrEnum

from include.spec import Append, Table

# File systems on which two processes cannot overwrite each other's commits.
SAFE_STORES = {"hdfs": "HDFS", "abfs": "ADLS", "abfss": "ADLS", "gs": "GCS"}


class CompactionPlace(StrEnum):
    """ONLINE: next to its writers. INLINE: by its own stream, between two batches. WINDOW: with no other writer."""

    ONLINE = "online"
    INLINE = "inline"
    WINDOW = "in a window"


def needs_exclusive_write(flow: Table, store: str) -> bool:
    """Returns whether a batch of the flow excludes every other writer of its table. store: as `place_of_compaction`.

    Append flows share a table, except for two cases. Their batches could miss each other's rows, as with unique rows,
    or the store allows only one committer at a time.
    """
    if not isinstance(flow.write, Append):
        return True
    looks_at_the_table = bool(flow.write.unique or flow.expect)
    return flow.branch is not None and (looks_at_the_table or store not in SAFE_STORES)


def place_of_compaction(table: Table, store: str) -> tuple[CompactionPlace, str]:
    """Returns where the table is compacted, and why, in words. store: its URI scheme, such as file or hdfs."""
    if table.merges_in_windows:
        return CompactionPlace.WINDOW, "its upserts are gathered for windows, so it is compacted where they are merged"
    if table.is_view:
        return CompactionPlace.WINDOW, "it is replaced as a whole at each refresh, which has it to itself"
    if not isinstance(table.write, Append):
        interval = f"every {table.maintain.every_batches} batches"
        return CompactionPlace.INLINE, f"a stream upserts it all the time, so that stream compacts it {interval}"
    if table.has_quarantine:
        return CompactionPlace.WINDOW, "a batch that is tried again rewrites its quarantine, which goes with it"
    if store in SAFE_STORES:
        return (
            CompactionPlace.ONLINE,
            f"it is only appended to, and on {SAFE_STORES[store]} nobody can overwrite a commit",
        )
    return CompactionPlace.WINDOW, f"on {store}: two processes that commit at once can overwrite each other"
