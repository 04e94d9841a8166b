"""Rows that are not current stay marked until they are recomputed, and a mark says by what."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from sqlalchemy import Engine

from include.control.jobs import backfills, stale_rows
from include.control.store import database
from include.engine.checkpoints.definition import fingerprint, rows_fingerprint
from include.lake import locations
from include.monitoring.stale_rows import outdated_words, range_of
from include.project.ranges import Slice, from_stored_texts
from include.spec import Append, Bucket, Debezium, Delta, Expect, Flow, Json, Kafka, Lookup, Maintenance, Upsert

FLOW = "silver.orders"
NINTH = "2026-03-09T00:00:00.000000Z"
SCHEMA = "time TIMESTAMP COMMENT 'when', amount INT"
TABLE = Flow(name=FLOW, comment="", source=Delta("bronze.orders"), schema=SCHEMA, time_column="time")


def days(first: int, last: int) -> Slice:
    return Slice(datetime(2026, 3, first, tzinfo=UTC), datetime(2026, 3, last, tzinfo=UTC))


def mark_and_replace(engine: Engine, marked_range: Slice, *replaced_ranges: Slice) -> list[Slice]:
    with database.transaction(engine) as connection:
        stale_rows.mark_outdated(connection, FLOW, 1, 7, marked_range)
        for replaced_range in replaced_ranges:
            stale_rows.unmark_range(connection, FLOW, replaced_range, {}, database.now(connection))
    return [mark.range for mark in stale_rows.outdated_ranges(engine)]


@pytest.mark.parametrize(
    ("marked", "made", "rest"),
    [
        (days(1, 9), [days(1, 9)], []),
        (days(2, 8), [days(1, 9)], []),
        (days(1, 9), [Slice()], []),
        (Slice(), [days(1, 9)], [Slice()]),
        (Slice(), [Slice()], []),
        (days(1, 9), [days(1, 3)], [days(3, 9)]),
        (days(1, 9), [days(7, 12)], [days(1, 7)]),
        (days(1, 9), [days(4, 5)], [days(1, 4), days(5, 9)]),
        (days(1, 9), [days(4, 5), days(1, 4), days(5, 9)], []),
        (days(1, 9), [days(10, 12)], [days(1, 9)]),
    ],
)
def test_what_was_made_again_is_outdated_no_more_and_the_rest_is(engine: Engine, marked, made, rest):
    assert mark_and_replace(engine, marked, *made) == rest


def test_a_second_change_takes_the_place_of_the_first(engine: Engine):
    mark_and_replace(engine, days(1, 9))
    with database.transaction(engine) as connection:
        stale_rows.mark_outdated(connection, FLOW, 1, 9, days(1, 12))
    [mark] = stale_rows.outdated_ranges(engine)
    assert (mark.flow, mark.generation, mark.batch, mark.range) == (FLOW, 1, 9, days(1, 12))


@pytest.mark.parametrize(
    ("last_commit", "stands"),
    [((2, 3), (2, 3)), ((2, 2), (1, 7)), ((1, 7), (1, 7)), ((1, 6), None), (None, None)],
)
def test_a_change_by_which_no_batch_that_stands_was_made_is_forgotten_and_earlier_ones_are_not(
    engine: Engine, last_commit, stands
):
    mark_and_replace(engine, days(1, 9))
    with database.transaction(engine) as connection:
        stale_rows.mark_outdated(connection, FLOW, 2, 3, days(1, 12))
        stale_rows.mark_outdated(connection, "silver.other", 9, 9, Slice())
        stale_rows.unmark_undone(connection, FLOW, last_commit)
    marks = [(mark.generation, mark.batch) for mark in stale_rows.outdated_ranges(engine)]
    assert marks == [*([stands] if stands else []), (9, 9)]


def test_older_rows_of_one_flow_are_kept_and_whoever_keeps_none_is_told(engine: Engine):
    with database.transaction(engine) as connection:
        stale_rows.mark_outdated(connection, FLOW, 0, 0, days(1, 9))
        stale_rows.mark_outdated(connection, "silver.other", 1, 7, days(1, 9))
    assert [(mark.flow, mark.batch) for mark in stale_rows.outdated_ranges(engine)] == [(FLOW, 0), ("silver.other", 7)]
    with database.transaction(engine) as connection:
        assert [stale_rows.keep_rows(connection, FLOW) for _ in range(2)] == [True, False]
    assert [mark.flow for mark in stale_rows.outdated_ranges(engine)] == ["silver.other"]


def test_rows_without_a_time_are_outdated_until_all_rows_are_made_again(engine: Engine):
    with database.transaction(engine) as connection:
        stale_rows.mark_outdated(connection, FLOW, 1, 7, days(1, 9))
        stale_rows.mark_outdated(connection, FLOW, 1, 7, Slice(), without_time=True)
        stale_rows.unmark_range(connection, FLOW, days(1, 9), {}, database.now(connection))
    [mark] = stale_rows.outdated_ranges(engine)
    assert mark.without_time
    assert "and older rows without time are of an earlier one: spark-submit" in outdated_words(mark, TABLE)
    with database.transaction(engine) as connection:
        stale_rows.unmark_range(connection, FLOW, Slice(), {}, database.now(connection))
    assert stale_rows.outdated_ranges(engine) == []


def begun(engine: Engine, range_: Slice, definition: str | None) -> Callable[[], None]:
    """Ask for a backfill, whose job makes rows by this definition; None for one of an older build. Returns its end."""
    backfill = backfills.begin(engine, FLOW, range_, "a test")
    definitions = {} if definition is None else {FLOW: definition}
    return lambda: backfills.finish(engine, backfill, 7, (1, 1), [], definitions)


@pytest.mark.parametrize("range_", [days(1, 9), Slice()])
@pytest.mark.parametrize(
    ("asked_before", "made_by", "is_left"),
    [
        # The job of a backfill that was asked for before the change may have begun behind it.
        *((True, "new", False), (True, "old", True), (True, None, True)),
        *((False, "new", False), (False, "old", True), (False, None, False)),
    ],
)
def test_a_backfill_ends_a_note_if_its_definition_is_that_of_the_flow(
    engine: Engine, range_: Slice, asked_before: bool, made_by: str | None, is_left: bool
):
    finish = begun(engine, range_, made_by) if asked_before else None
    with database.transaction(engine) as connection:
        stale_rows.mark_outdated(connection, FLOW, 1, 7, days(1, 9), "new")
    finish = finish or begun(engine, range_, made_by)
    finish()
    assert [mark.range for mark in stale_rows.outdated_ranges(engine)] == ([days(1, 9)] if is_left else [])


def test_a_backfill_ends_the_notes_of_its_definition_and_of_earlier_ones_and_none_of_a_later_one(engine: Engine):
    with database.transaction(engine) as connection:
        stale_rows.mark_outdated(connection, FLOW, 1, 5, days(1, 9), "first")
        stale_rows.mark_outdated(connection, FLOW, 1, 7, days(1, 9), "second")
        stale_rows.mark_outdated(connection, FLOW, 1, 9, days(1, 9), "third")
    begun(engine, days(1, 9), "second")()
    assert [mark.batch for mark in stale_rows.outdated_ranges(engine)] == [9]
    with database.transaction(engine) as connection:
        stale_rows.unmark_undone(connection, FLOW, (1, 8))
    assert stale_rows.outdated_ranges(engine) == []


def test_the_words_say_since_which_batch_and_the_command_that_mends_it(engine: Engine):
    mark_and_replace(engine, days(1, 9))
    [mark] = stale_rows.outdated_ranges(engine)
    description = outdated_words(mark, TABLE)
    assert f"{FLOW}: its definition of 20" in description
    assert (
        "holds from batch 1/7 on, and rows from 2026-03-01T00:00:00Z to 2026-03-09T00:00:00Z are of an earlier one"
        in description
    )
    assert (
        """airflow dags trigger backfill -c '{"table": "silver.orders", "from": "2026-03-01", "to": "2026-03-09"}'"""
        in description
    )
    whole_table_mark = replace(mark, range=Slice())
    assert "spark-submit jobs/backfill.py --table silver.orders --full, or action keep old rows" in outdated_words(
        whole_table_mark, TABLE
    )
    kafka_table = Flow(name="bronze.orders", comment="", source=Kafka("orders"))
    assert "no backfill can make them again" in outdated_words(
        replace(whole_table_mark, flow="bronze.orders"), kafka_table
    )


def at(day: int, hour: int = 10) -> datetime:
    return datetime(2026, 3, day, hour, 59, 59, tzinfo=UTC)


# By case: the times in each file of a table, and what is outdated of it.
STORED = {
    "times": ([[at(2), at(5, 23)]], (days(2, 6), False)),
    "some without": ([[at(2), None], [at(5)]], (days(2, 6), True)),
    "a file without": ([[at(2)], [None, None]], (days(2, 3), True)),
    "all without": ([[None]], (Slice(), False)),
    "nothing": ([[]], (Slice(), False)),
}


@pytest.mark.parametrize("case", STORED)
def test_the_range_is_the_days_of_the_rows_that_are_stored(home, case: str):
    files, expected = STORED[case]
    for times in files:
        rows = pa.table({"time": pa.array(times, pa.timestamp("us", tz="UTC"))})
        write_deltalake(str(locations.table_path(FLOW)), rows, mode="append")
    assert range_of(TABLE) == expected
    assert range_of(replace(TABLE, time_column=None)) == (Slice(), False)


def test_a_file_without_statistics_of_its_times_makes_the_range_the_whole_table(home):
    path = locations.table_path(FLOW)
    for day in (2, 5):
        rows = pa.table({"time": pa.array([at(day)], pa.timestamp("us", tz="UTC"))})
        configuration = {"delta.dataSkippingNumIndexedCols": "1"} if day == 2 else None
        write_deltalake(str(path), rows, mode="append", configuration=configuration)
        DeltaTable(str(path)).alter.set_table_properties({"delta.dataSkippingNumIndexedCols": "0"})
    assert range_of(TABLE) == (Slice(), False)


LOOKUP = Lookup("silver.shops", on="id", columns=("city",))


def double_amount(rows):
    return rows.selectExpr("time", "2 * amount AS amount")


ROWS_CHANGE = {
    "a transform": {"transform": double_amount},
    "SQL": {"transform": "SELECT * FROM source"},
    "a type": {"schema": SCHEMA.replace("INT", "BIGINT")},
    "a rule": {"expect": (Expect("positive", "amount > 0"),)},
    "what becomes of a row": {"expect": (Expect("positive", "amount > 0", otherwise="drop"),)},
    "a parse": {"parse": Json("value", into=("amount",))},
    "an identity": {"write": Append(unique=("time",))},
    "an aggregate": {"write": Upsert(keys=("time",), recompute=Bucket("time", of="time", unit="day"))},
    "another source": {"source": Delta("bronze.clicks")},
    "a lookup": {"lookups": (LOOKUP,)},
}
# What makes other rows of a table with the lookup above.
LOOKUP_CHANGES = {
    "its table": {"table": "silver.other"},
    "its keys": {"on": {"id": "shop"}},
    "its columns": {"columns": ("city", "name")},
    "its prefix": {"prefix": "shop_"},
    "its time": {"at": "time"},
    "which row": {"current": True},
}
ROWS_STAY = {
    "a comment": {"comment": "other words", "schema": SCHEMA.replace("when", "the time")},
    "how often": {"interval_seconds": 60.0, "driver": "side", "schedule": None},
    "smaller batches": {"source": Delta("bronze.orders", max_files=3)},
    "its care": {"maintain": Maintenance(schedule=None), "owner": "team", "fresh_minutes": 5.0},
}


@pytest.mark.parametrize("case", ROWS_CHANGE)
def test_what_makes_other_rows_is_another_definition_of_rows(case: str):
    changed = replace(TABLE, **ROWS_CHANGE[case])
    assert rows_fingerprint(changed) != rows_fingerprint(TABLE)
    assert fingerprint(changed) != fingerprint(TABLE)


@pytest.mark.parametrize("case", ROWS_STAY)
def test_what_makes_the_same_rows_is_none(case: str):
    changed = replace(TABLE, **ROWS_STAY[case])
    assert rows_fingerprint(changed) == rows_fingerprint(TABLE)
    assert fingerprint(changed) != fingerprint(TABLE)


@pytest.mark.parametrize("case", LOOKUP_CHANGES)
def test_a_changed_lookup_is_another_definition_of_rows(case: str):
    table, changed = (replace(TABLE, lookups=(lookup,)) for lookup in (LOOKUP, replace(LOOKUP, **LOOKUP_CHANGES[case])))
    assert rows_fingerprint(changed) != rows_fingerprint(table)
    assert fingerprint(changed) != fingerprint(table)


def test_how_often_a_lookup_reads_a_new_version_is_no_other_definition_of_rows():
    table, changed = (replace(TABLE, lookups=(replace(LOOKUP, refresh_seconds=seconds),)) for seconds in (60, 5))
    assert rows_fingerprint(changed) == rows_fingerprint(table)


def test_a_definition_of_debezium_is_that_of_older_releases_until_it_uses_a_newer_option():
    parse = Debezium("value", into=("amount",))
    older = "Debezium(column='value', into=('amount',), sequence='lsn', integer_times='micros', fails=False)"
    assert repr(parse) == older
    table = replace(TABLE, parse=parse)
    assert rows_fingerprint(table) == rows_fingerprint(replace(TABLE, parse=replace(parse, binary="base64")))
    changes = (
        {"unwrapped": True},
        {"placeholder": "none"},
        {"binary": "hex"},
        {"tombstones": True},
        {"integer_times": {"amount": "millis"}},
    )
    others = [replace(TABLE, parse=replace(parse, **change)) for change in changes]
    for of in (rows_fingerprint, fingerprint):
        assert len({of(each) for each in (table, *others)}) == 1 + len(others)


def test_a_backfill_that_is_given_up_leaves_what_others_recompute_to_them(engine: Engine):
    with database.transaction(engine) as connection:
        for root in (1, 2):
            stale_rows.mark_stale(connection, "gold.a", Slice(), "its source was backfilled", follows=root)
        stale_rows.mark_stale(connection, "gold.a", Slice(), "its source is gone: move it away")
        stale_rows.mark_given_up(connection, "gold.a", 1)
    assert [mark.why for mark in stale_rows.stale_ranges(engine)] == [
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
                stale_rows.unmark_range(connection, "gold.a", range_, {}, 0)
        return [(mark.table, mark.range) for mark in stale_rows.stale_ranges(engine)]

    with database.transaction(engine) as connection:
        for table, range_ in (("gold.a", first), ("gold.a", last), ("gold.a", middle), ("gold.b", middle)):
            stale_rows.mark_stale(connection, table, range_, "its source was backfilled")
    assert left(middle) == [("gold.a", first), ("gold.a", last), ("gold.b", middle)]
    assert left(wider) == [("gold.a", first), ("gold.a", last), ("gold.b", middle)]
    assert left(last) == [("gold.a", first), ("gold.b", middle)]
    assert left(Slice()) == [("gold.b", middle)]


def test_marks_since_a_moment_go_and_earlier_ones_and_those_of_other_tables_stay(engine: Engine):
    with database.transaction(engine) as connection:
        for table in ("gold.a", "gold.b"):
            stale_rows.mark_stale(connection, table, Slice(), "its source was backfilled")
    [mark, _] = stale_rows.stale_ranges(engine)
    for since, left in ((mark.since, ["gold.a", "gold.b"]), (mark.since - 1, ["gold.b"])):
        with database.transaction(engine) as connection:
            stale_rows.unmark_since(connection, "gold.a", since)
        assert [one.table for one in stale_rows.stale_ranges(engine)] == left
