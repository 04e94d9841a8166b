"""Where a table is compacted, and the sentence that gives the reason."""

from include.maintenance import policy
from include.maintenance.policy import CompactionPlace
from include.spec import Append, Bucket, Delta, Expect, Maintenance, Table, Upsert

BUCKET = Bucket("minute", of="time", unit="minute")
APPEND = Append()
UPSERT = Upsert(keys=("minute",), recompute=BUCKET)


def table(write: Append | Upsert = APPEND, **fields) -> Table:
    return Table(
        name="silver.a", source=Delta("bronze.a"), comment="", schema="minute TIMESTAMP", write=write, **fields
    )


def test_a_table_whose_upserts_are_gathered_is_compacted_in_its_windows():
    place, why = policy.place_of_compaction(table(Upsert(keys=("minute",), recompute=BUCKET, in_windows=True)))
    assert place is CompactionPlace.WINDOW
    assert why == "its upserts are gathered for windows, so it is compacted where they are merged"


def test_a_table_that_is_upserted_all_the_time_is_compacted_by_its_stream():
    place, why = policy.place_of_compaction(table(UPSERT, maintain=Maintenance(every_batches=50)))
    assert place is CompactionPlace.INLINE
    assert why == "a stream upserts it all the time, so that stream compacts it every 50 batches"


def test_a_table_with_a_quarantine_is_compacted_in_windows():
    place, why = policy.place_of_compaction(table(expect=(Expect("known", "minute IS NOT NULL"),)))
    assert place is CompactionPlace.WINDOW
    assert why == "a batch that is tried again rewrites its quarantine, which goes with it"


def test_a_table_that_is_only_appended_to_is_compacted_in_windows():
    place, why = policy.place_of_compaction(table())
    assert place is CompactionPlace.WINDOW
    assert why == "two processes that commit at once can overwrite each other, on disk as on S3"


def test_a_place_reads_as_it_is_spoken():
    assert [str(place) for place in CompactionPlace] == ["inline", "in a window"]
