"""A stale range says what recomputes it."""

from sqlalchemy import Engine

from include.control.jobs import stale_tables
from include.control.store import database
from include.project.ranges import Slice, from_stored_texts

NINTH = "2026-03-09T00:00:00.000000Z"


def test_a_backfill_that_is_given_up_leaves_what_others_recompute_to_them(engine: Engine):
    with database.transaction(engine) as connection:
        for root in (1, 2):
            stale_tables.mark(connection, "gold.a", Slice(), "its source was backfilled", follows=root)
        stale_tables.mark(connection, "gold.a", Slice(), "its source is gone: move it away")
        stale_tables.mark_given_up(connection, "gold.a", 1)
    assert [mark.why for mark in stale_tables.list_all(engine)] == [
        "its source was backfilled: backfill 1 was given up: backfill gold.a",
        "its source was backfilled: backfill 2 recomputes it",
        "its source is gone: move it away",
    ]


def test_marks_within_what_was_recomputed_go_and_those_that_reach_beyond_it_stay(engine: Engine):
    first, last = (from_stored_texts(f"2026-03-0{day}T00:00:00.000000Z", NINTH) for day in (1, 8))
    middle = from_stored_texts("2026-03-02T00:00:00.000000Z", "2026-03-03T00:00:00.000000Z")
    wider = from_stored_texts("2026-03-01T00:00:00.000000Z", "2026-03-03T00:00:00.000000Z")

    def left(*recomputed: Slice) -> list[tuple[str, Slice]]:
        with database.transaction(engine) as connection:
            for range_ in recomputed:
                stale_tables.unmark_range(connection, "gold.a", range_)
        return [(mark.table, mark.range) for mark in stale_tables.list_all(engine)]

    with database.transaction(engine) as connection:
        for table, range_ in (("gold.a", first), ("gold.a", last), ("gold.a", middle), ("gold.b", middle)):
            stale_tables.mark(connection, table, range_, "its source was backfilled")
    assert left(middle) == [("gold.a", first), ("gold.a", last), ("gold.b", middle)]
    assert left(wider) == [("gold.a", first), ("gold.a", last), ("gold.b", middle)]
    assert left(last) == [("gold.a", first), ("gold.b", middle)]
    assert left(Slice()) == [("gold.b", middle)]


def test_marks_since_a_moment_go_and_earlier_ones_and_those_of_other_tables_stay(engine: Engine):
    with database.transaction(engine) as connection:
        for table in ("gold.a", "gold.b"):
            stale_tables.mark(connection, table, Slice(), "its source was backfilled")
    [mark, _] = stale_tables.list_all(engine)
    for since, left in ((mark.since, ["gold.a", "gold.b"]), (mark.since - 1, ["gold.b"])):
        with database.transaction(engine) as connection:
            stale_tables.unmark_since(connection, "gold.a", since)
        assert [one.table for one in stale_tables.list_all(engine)] == left
