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


def place_of_compaction(table: Table, store: str) -> tuple[Place, str]:
    """Where the table is compacted, and why, in words. store: the scheme of its place, such as file or hdfs."""
    if table.merges_in_windows:
        return Place.WINDOW, "its upserts are gathered for windows, so it is compacted where they are merged"
    if not isinstance(table.write, Append):
        every = f"every {table.maintain.every_batches} batches"
        return Place.INLINE, f"a stream upserts it all the time, so that stream compacts it {every}"
    if table.has_quarantine:
        return Place.WINDOW, "a batch that is tried again rewrites its quarantine, which goes with it"
    if store in SAFE_STORES:
        return Place.ONLINE, f"it is only appended to, and on {SAFE_STORES[store]} nobody can overwrite a commit"
    return Place.WINDOW, f"on {store}: two processes that commit at once can overwrite each other"
