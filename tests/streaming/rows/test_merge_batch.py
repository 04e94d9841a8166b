"""A flow merges changes of keys into its table, whatever the order and the batches in which they arrive."""

import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from include.cli.rows import entry_line, outcome_line
from include.flows.batches import BatchHistory
from include.ledger import row_outcomes
from include.spec import CHANGE_RULE, Delta, Expect, Flow, Json, Table, Upsert
from tests.support.backfills import Backfills
from tests.support.batches import BatchWriter
from tests.support.flows import only_in_full_runs, rows_of

SOURCE = "id INT, place STRING, mood STRING, seq INT, op STRING"
SCHEMA = "id INT, place STRING, mood STRING, seq INT"


def table_of(write: Upsert, **fields) -> Table:
    name = f"t{uuid.uuid4().hex[:12]}"
    return Flow(
        name=f"silver.{name}", comment="moods", source=Delta(f"bronze.{name}"), schema=SCHEMA, write=write, **fields
    )


@pytest.fixture
def batches(spark: SparkSession, tmp_path: Path) -> BatchWriter:
    return BatchWriter(spark, tmp_path, SOURCE)


LATEST = Upsert(("id",), sequence_by="seq", deletes="op = 'd'")


def rows(table: Table, *names: str) -> list[tuple]:
    return sorted(tuple(row[name] for name in names) for row in rows_of(table.name))


def test_a_late_change_does_not_replace_a_newer_row(batches):
    table = table_of(LATEST)
    batches.write(table, [(1, "north", "calm", 5, "u"), (2, "south", "wild", 1, "c")])
    batches.write(table, [(1, "east", "wild", 3, "u"), (2, "south", "calm", 2, "u")])
    assert rows(table, "id", "place", "mood") == [(1, "north", "calm"), (2, "south", "calm")]
    newest = entry_line(next(BatchHistory(table).batches()))
    assert "of 2 read, 0 inserted, 1 updated, 0 deleted, 1 unchanged, 0 stale, 0 quarantined, 0 dropped" in newest
    assert "2 read = 0 inserted + 1 updated + 0 deleted + 1 unchanged + 0 stale + 0 quarantined + 0 dropped" in (
        outcome_line(row_outcomes.batches(table, 1)[0])
    )


def test_an_insert_that_arrives_after_its_delete_does_not_return(batches):
    table = table_of(LATEST)
    batches.write(table, [(1, None, None, 7, "d")])
    batches.write(table, [(1, "north", "calm", 5, "c"), (2, "west", "calm", 1, "c")])
    assert rows(table, "id", "place") == [(2, "west")]
    assert [(row["id"], row["seq"], row["_deleted"]) for row in rows_of(table.retained)] == [(1, 7, True)]


def test_a_history_ends_a_row_where_the_next_change_begins(batches):
    table = table_of(Upsert(("id",), sequence_by="seq", deletes="op = 'd'", scd=2, tracked=("place",)))
    batches.write(table, [(1, "north", "calm", 1, "c"), (1, "north", "wild", 5, "u"), (1, None, None, 9, "d")])
    assert rows(table, "place", "mood", "valid_from", "valid_to", "is_current") == [("north", "wild", 1, 9, False)]
    batches.write(table, [(1, "south", "calm", 3, "u")])
    assert rows(table, "valid_from", "valid_to", "place", "mood", "is_current") == [
        (1, 3, "north", "calm", False),
        (3, 5, "south", "calm", False),
        (5, 9, "north", "wild", False),
    ]


def test_a_truncate_deletes_all_earlier_changes_even_those_that_arrive_later(batches):
    table = table_of(replace(LATEST, truncates="op = 't'"))
    batches.write(table, [(1, "north", "calm", 1, "c"), (2, "south", "wild", 8, "c")])
    batches.write(table, [(None, None, None, 5, "t"), (3, "west", "calm", 6, "c")])
    assert rows(table, "id", "place") == [(2, "south"), (3, "west")]
    batches.write(table, [(4, "north", "calm", 4, "c"), (5, "north", "calm", 7, "c")])
    assert rows(table, "id", "place") == [(2, "south"), (3, "west"), (5, "north")]
    assert rows_of(table.quarantine) == []


def test_a_truncate_that_is_not_declared_is_quarantined(batches):
    table = table_of(LATEST)
    batches.write(table, [(1, "north", "calm", 1, "c"), (None, None, None, 5, "t")])
    assert rows(table, "id") == [(1,)]
    assert [row["_rules"] for row in rows_of(table.quarantine)] == [["key and sequence not null"]]


def test_a_delete_that_was_retained_before_truncates_were_declared_still_counts(batches):
    table = table_of(LATEST)
    batches.write(table, [(1, None, None, 7, "d")])
    table = replace(table, write=replace(LATEST, truncates="op = 't'"))
    batches.write(table, [(1, "north", "calm", 5, "c"), (2, "west", "calm", 1, "c")])
    assert rows(table, "id", "place") == [(2, "west")]


ERRORS = "_errors ARRAY<STRUCT<field: STRING, message: STRING>>"
FLAGS = [
    '{"id": 1, "seq": 1, "active": true, "op": "u"}',
    '{"id": 1, "seq": 2, "active": "maybe", "op": "u"}',
    '{"id": 2, "seq": 1, "op": "u"}',
    '{"id": 3, "seq": 1, "active": true, "amount": "much", "op": "u"}',
    '{"id": 4, "seq": 1, "active": true, "op": "u"}',
    '{"id": 4, "seq": 2, "active": false, "amount": "much", "op": "u"}',
    '{"id": 5, "seq": 1, "active": true}',
    '{"id": null, "seq": 0, "op": "t"}',
    '{"id": 6, "seq": 4, "active": "maybe", "op": "u"}',
    '{"seq": 4, "active": "maybe", "op": "u"}',
    '{"id": 7, "seq": 4, "active": true, "op": "u"}',
    '{"id": 8, "seq": 4, "active": false, "op": null}',
]
FLAGGED = Upsert(("id",), sequence_by="seq", deletes="NOT active", truncates="op = 't'")


def test_a_change_is_quarantined_if_a_value_that_could_not_be_typed_decides_whether_it_deletes(spark, tmp_path):
    typed = f"id INT, seq INT, active BOOLEAN, amount INT, {ERRORS}"
    parse, op = Json("value", into=("id", "seq", "active", "amount")), "get_json_object(value, '$.op') AS op"
    unknown = [(1, 2), (6, 4)]
    ways = {
        "by its name": replace(table_of(FLAGGED), schema=typed, parse=parse, transform=f"SELECT *, {op} FROM source"),
        "by another name": replace(
            table_of(replace(FLAGGED, deletes="gone")),
            schema=typed,
            parse=parse,
            transform=f"SELECT *, NOT active AS gone, {op} FROM source",
        ),
    }
    for way, table in ways.items():
        home = tmp_path / way.replace(" ", "_")
        home.mkdir()
        batches = BatchWriter(spark, home, "value STRING")
        result = batches.write(table, [(value,) for value in FLAGS])
        quarantined = {(row["id"], row["seq"]): row for row in rows_of(table.quarantine)}
        # A source may leave out a flag unless it is set.
        assert rows(table, "id", "seq") == [(1, 1), (2, 1), (3, 1), (5, 1), (7, 4)], way
        assert sorted(place for place in quarantined if place[0]) == unknown, way
        for id_, seq in unknown:
            row = quarantined[id_, seq]
            assert (row["_rules"], row["_deleted"]) == (["known whether it deletes"], None), way
        assert CHANGE_RULE in quarantined[None, 4]["_rules"], way
        # No replay stores them: none knows what they do.
        assert result.quarantined == len(unknown) + 1, way


def test_a_flag_that_the_upper_table_could_not_type_does_not_keep_a_key_alive(spark, tmp_path):
    table, error = table_of(LATEST), [("op", "is no text")]
    changes = [
        (1, "north", "calm", 1, "c", None),
        (1, "east", "calm", 2, None, error),
        (2, "west", "calm", 3, None, []),
    ]
    BatchWriter(spark, tmp_path, f"{SOURCE}, {ERRORS}").write(table, changes)
    assert rows(table, "id", "place") == [(1, "north"), (2, "west")]
    assert [(row["seq"], row["_rules"]) for row in rows_of(table.quarantine)] == [(2, ["known whether it deletes"])]


def test_a_change_that_no_later_one_could_overtake_is_quarantined(spark, tmp_path):
    write = Upsert(("id",), sequence_by="seq", deletes="op = 'd'", truncates="op = 't'")
    table = replace(table_of(write), schema="id INT, place STRING, seq DOUBLE")
    batches = BatchWriter(spark, tmp_path, "id INT, place STRING, seq DOUBLE, op STRING")
    nan, infinite = float("nan"), float("inf")
    batches.write(
        table,
        [
            (1, "north", nan, "u"),
            (1, "east", infinite, "u"),
            (1, "south", 1.0, "u"),
            (2, "west", -infinite, "u"),
            (2, None, nan, "d"),
            (None, None, nan, "t"),
            (3, None, None, "u"),
        ],
    )
    assert rows(table, "id", "place") == [(1, "south"), (2, "west")]
    batches.write(table, [(1, "late", 0.5, "u"), (2, "newer", 0.0, "u")])
    assert rows(table, "id", "place") == [(1, "south"), (2, "newer")]
    broken = sorted(rule for row in rows_of(table.quarantine) for rule in row["_rules"])
    assert broken == ["key and sequence not null", *["sequence can be overtaken"] * 4]


def test_a_partial_change_sets_only_what_it_brings(batches):
    table = table_of(Upsert(("id",), sequence_by="seq", deletes="op = 'd'", partial=True))
    batches.write(table, [(1, "north", None, 1, "c"), (1, None, "wild", 5, "u")])
    batches.write(table, [(1, "south", "calm", 3, "u")])
    assert rows(table, "id", "place", "mood", "seq") == [(1, "south", "wild", 5)]


@pytest.mark.parametrize(
    "write",
    [
        replace(LATEST, partial=True),
        pytest.param(LATEST, marks=only_in_full_runs),
        pytest.param(replace(LATEST, scd=2), marks=only_in_full_runs),
    ],
    ids=["partial", "latest", "history"],
)
def test_a_backfill_merges_all_changes_to_the_same_rows(name, append, run_once, spark, write):
    table = replace(table_of(write), name=f"silver.{name}", source=Delta(f"bronze.{name}"))
    arriving = [
        (1, "north", None, 1, "c"),
        (2, "south", "calm", 4, "c"),
        (2, None, None, 5, "d"),
        (1, None, "wild", 3, "u"),
    ]
    for change in arriving:
        append(f"bronze.{name}", [dict(zip(("id", "place", "mood", "seq", "op"), change, strict=True))], SOURCE)
    run_once(table)
    before = sorted(rows_of(table.name), key=str)
    assert (1, 3) in [(row["id"], row["seq"]) for row in before]
    Backfills(spark, (table,)).run(table, as_a_whole=True)
    assert sorted(rows_of(table.name), key=str) == before


def test_a_change_without_key_or_sequence_is_quarantined_and_a_delete_meets_no_other_rule(batches):
    table = table_of(LATEST, expect=(Expect("has a place", "place IS NOT NULL"),))
    batches.write(table, [(1, "north", None, 1, "c"), (2, "south", None, 1, "c")])
    result = batches.write(table, [(None, "north", None, 2, "u"), (2, None, None, 2, "d"), (1, None, None, 3, "u")])
    assert rows(table, "id", "place") == [(1, "north")]
    assert (result.read, result.quarantined) == (3, 2)
    assert sorted(rule for row in rows_of(table.quarantine) for rule in row["_rules"]) == [
        "has a place",
        "key and sequence not null",
    ]


def test_a_batch_that_was_killed_between_both_commits_is_written_as_a_whole(batches):
    table = table_of(LATEST)
    batches.write(table, [(1, "north", "calm", 1, "c")])
    batches.write(table, [(1, None, None, 7, "d")])
    batches.write_again(table, [(1, None, None, 7, "d")])
    assert rows(table, "id") == []
    assert len(rows_of(table.retained)) == 1
