"""Where a table is compacted, and the sentence that gives the reason."""

from include.maintenance import table_survey
from include.maintenance.table_survey import CompactionPlace
from include.spec import Append, Bucket, Delta, Expect, Maintenance, Table, Upsert

BUCKET = Bucket("minute", of="time", unit="minute")
APPEND = Append()
# Late commits fail by themselves.
SAFE = True
UPSERT = Upsert(keys=("minute",), recompute=BUCKET)


def table(write: Append | Upsert = APPEND, **fields) -> Table:
    return Table(
        name="silver.a", source=Delta("bronze.a"), comment="", schema="minute TIMESTAMP", write=write, **fields
    )


def test_a_table_whose_upserts_are_gathered_is_compacted_in_its_windows():
    place, why = table_survey.place_of_compaction(
        table(Upsert(keys=("minute",), recompute=BUCKET, in_windows=True)), SAFE
    )
    assert place is CompactionPlace.WINDOW
    assert why == "its upserts are gathered for windows, so it is compacted where they are merged"


def test_a_table_that_is_upserted_all_the_time_is_compacted_by_its_stream():
    place, why = table_survey.place_of_compaction(table(UPSERT, maintain=Maintenance(every_batches=50)), SAFE)
    assert place is CompactionPlace.INLINE
    assert why == "a stream upserts it all the time, so that stream compacts it every 50 batches"


def test_a_table_with_a_quarantine_is_compacted_in_windows():
    place, why = table_survey.place_of_compaction(table(expect=(Expect("known", "minute IS NOT NULL"),)), SAFE)
    assert place is CompactionPlace.WINDOW
    assert why == "a batch that is tried again rewrites its quarantine, which goes with it"


def test_a_table_whose_batches_look_for_their_rows_in_it_is_compacted_in_windows():
    place, why = table_survey.place_of_compaction(table(Append(unique=("minute",))), SAFE)
    assert place is CompactionPlace.WINDOW
    assert why == "its batches look for their rows in it, and fail if files are replaced meanwhile"


def test_a_table_that_is_only_appended_to_is_compacted_beside_its_writers_where_late_commits_fail():
    place, why = table_survey.place_of_compaction(table(), SAFE)
    assert place is CompactionPlace.ONLINE
    assert why == "it is only appended to, and on this store a late commit fails by itself"


def test_elsewhere_it_is_compacted_in_windows():
    place, why = table_survey.place_of_compaction(table(), late_commits_fail=False)
    assert place is CompactionPlace.WINDOW
    assert why == "two processes that commit at once can overwrite each other"


def test_a_place_reads_as_it_is_spoken():
    assert [str(place) for place in CompactionPlace] == ["online", "inline", "in a window"]
