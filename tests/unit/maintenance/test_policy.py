"""Where a table is compacted, and in what words that is said."""

import pytest

from include.maintenance import policy
from include.maintenance.policy import SAFE_STORES, CompactionPlace
from include.spec import Append, Bucket, Delta, Expect, Maintenance, Table, Upsert

BUCKET = Bucket("minute", of="time", unit="minute")
APPEND = Append()
UPSERT = Upsert(keys=("minute",), recompute=BUCKET)


def table(write: Append | Upsert = APPEND, **more) -> Table:
    return Table(name="silver.a", source=Delta("bronze.a"), comment="", schema="minute TIMESTAMP", write=write, **more)


@pytest.mark.parametrize("store", ["file", "s3a", "hdfs"])
def test_a_table_whose_upserts_are_gathered_is_compacted_in_its_windows_wherever_it_lies(store: str):
    gathered = table(Upsert(keys=("minute",), recompute=BUCKET, in_windows=True))
    place, why = policy.place_of_compaction(gathered, store)
    assert place is CompactionPlace.WINDOW
    assert why == "its upserts are gathered for windows, so it is compacted where they are merged"


@pytest.mark.parametrize("store", ["file", "s3a", "hdfs"])
def test_a_table_that_is_upserted_all_the_time_is_compacted_by_its_stream_wherever_it_lies(store: str):
    place, why = policy.place_of_compaction(table(UPSERT, maintain=Maintenance(every_batches=50)), store)
    assert place is CompactionPlace.INLINE
    assert why == "a stream upserts it all the time, so that stream compacts it every 50 batches"


@pytest.mark.parametrize("store", ["file", "hdfs"])
def test_a_table_with_a_quarantine_is_compacted_in_windows_also_on_a_safe_store(store: str):
    place, why = policy.place_of_compaction(table(expect=(Expect("known", "minute IS NOT NULL"),)), store)
    assert place is CompactionPlace.WINDOW
    assert why == "a batch that is tried again rewrites its quarantine, which goes with it"


@pytest.mark.parametrize("store", sorted(SAFE_STORES))
def test_a_table_that_is_only_appended_to_is_compacted_beside_its_writers_on_a_safe_store(store: str):
    place, why = policy.place_of_compaction(table(), store)
    assert place is CompactionPlace.ONLINE
    assert why == f"it is only appended to, and on {SAFE_STORES[store]} nobody can overwrite a commit"


@pytest.mark.parametrize("store", ["file", "s3", "s3a", "wasb"])
def test_on_every_other_store_it_is_compacted_in_windows(store: str):
    place, why = policy.place_of_compaction(table(), store)
    assert place is CompactionPlace.WINDOW
    assert why == f"on {store}: two processes that commit at once can overwrite each other"


def test_a_place_reads_as_it_is_spoken():
    assert [str(place) for place in CompactionPlace] == ["online", "inline", "in a window"]
