"""A stale range says what recomputes it."""

from sqlalchemy import Engine

from include.control.jobs import stale_tables
from include.control.store import database
from include.project.ranges import Slice


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
