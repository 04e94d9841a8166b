"""Where a table is kept in shape: beside its writers, inside its own stream, or in a window."""

from enum import StrEnum

from include.spec import Append, Table

# File systems on which two processes cannot overwrite each other's commit.
SAFE_STORES = {"hdfs": "HDFS", "abfs": "ADLS", "abfss": "ADLS", "gs": "GCS"}


class Place(StrEnum):
    """ONLINE: beside its writers. INLINE: by its own stream, between two batches. WINDOW: with the table to itself."""

    ONLINE = "online"
    INLINE = "inline"
    WINDOW = "in a window"


def writes_alone(flow: Table, store: str) -> bool:
    """Whether a batch of the flow keeps every other writer of its table out. store: as below.

    Appends of one flow among several share the table, except where two batches could each miss what the other adds
    (a repeated row, say), and where the store is safe for one committer at a time.
    """
    if not isinstance(flow.write, Append):
        return True
    looks_at_the_table = bool(flow.write.unique or flow.expect)
    return flow.branch is not None and (looks_at_the_table or store not in SAFE_STORES)


def place_of_compaction(table: Table, store: str) -> tuple[Place, str]:
    """Where the table is compacted, and why, in words. store: the scheme of its place, such as file or hdfs."""
    if table.merges_in_windows:
        return Place.WINDOW, "its upserts are gathered for windows, so it is compacted where they are merged"
    if table.is_view:
        return Place.WINDOW, "it is replaced as a whole at each refresh, which has it to itself"
    if not isinstance(table.write, Append):
        every = f"every {table.maintain.every_batches} batches"
        return Place.INLINE, f"a stream upserts it all the time, so that stream compacts it {every}"
    if table.has_quarantine:
        return Place.WINDOW, "a batch that is tried again rewrites its quarantine, which goes with it"
    if store in SAFE_STORES:
        return Place.ONLINE, f"it is only appended to, and on {SAFE_STORES[store]} nobody can overwrite a commit"
    return Place.WINDOW, f"on {store}: two processes that commit at once can overwrite each other"
