"""Flows over the changes of a database: what is no event is quarantined, and changes have the order of the database."""

import json

import pytest

from include.delta.delta_log import DeltaLog
from include.engine.fast_path import path
from include.engine.rows.parse_debezium import IS_NO_EVENT
from include.errors import LedgerMismatch
from include.lake import locations
from include.ledger import row_outcomes, verify
from include.spec import Debezium, Delta, Flow, Table, Upsert
from tests.support.flows import only_in_full_runs, rows_of

VALUE = "value BINARY"
ERRORS = "_errors ARRAY<STRUCT<field: STRING, message: STRING>>"
CHANGES = Upsert(("id",), sequence_by="_sequence", deletes="_op = 'd'", truncates="_op = 't'")
FAST, SPARK = "batches with the fast path", "batches of Spark's writers"
on_both_paths = pytest.mark.parametrize("merge", (FAST, SPARK), indirect=True)


def event(op: str, row: dict | None, /, **source: object) -> bytes:
    image = "before" if op == "d" else "after"
    return json.dumps({"op": op, image: row, "source": {"ts_ms": 1_700_000_000_000, **source}}).encode()


def table_of(name: str, parse: Debezium, schema: str, write: Upsert) -> Table:
    return Flow(
        name=f"silver.{name}",
        comment="changes of a database",
        source=Delta(f"bronze.{name}", max_files=1),
        schema=f"{schema}, {ERRORS}",
        parse=parse,
        write=write,
    )


@pytest.fixture(params=(FAST, pytest.param(SPARK, marks=only_in_full_runs)))
def merge(request, append, run_once, name, monkeypatch):
    """`merge(parse, schema, write, *batches)` merges batches of values on one path, verifies, and returns the table."""
    if request.param == SPARK:
        monkeypatch.setattr(path, "of", lambda spark, table: None)

    def run(parse: Debezium, schema: str, write: Upsert, *batches: list[bytes | None]) -> Table:
        for batch in batches:
            append(f"bronze.{name}", [{"value": value} for value in batch], VALUE)
        table = table_of(name, parse, schema, write)
        run_once(table)
        verify.verify(table)
        return table

    return run


def outcomes(table: Table) -> list[dict[str, int]]:
    """What each batch did, without what it did not."""
    batches = reversed(row_outcomes.batches(table, 9))
    return [{name: count for name, count in (batch.outcomes or {}).items() if count} for batch in batches]


BROKEN = {
    b"this is no JSON": f"it{IS_NO_EVENT}",
    event("c", {"id": 1}, lsn=1)[:-7]: f"it{IS_NO_EVENT}",
    b'{"id": 2, "name": "x", "__op": "c"}': "it is a row, which Debezium(unwrapped=True) reads",
    b'{"after": {"id": 3}, "source": {"lsn": 3}}': "it has no op",
    event("c", {"id": 5, "name": "e"}, lsn=5).replace(b'"e"', b'"\xff"'): "it is no UTF-8",
    b"{}": "it has no op",
    b"[1, 2]": f"it{IS_NO_EVENT}",
    b"42": f"it{IS_NO_EVENT}",
    b"": "it is empty",
    event("x", {"id": 4}, lsn=4): "its op is 'x'",
    event("m", None, lsn=4): "its op is 'm'",
    b'{"op": null, "after": {"id": 4}, "source": {"lsn": 4}}': "it has no op",
}


@on_both_paths
def test_what_is_no_change_event_is_quarantined_with_its_reason_and_is_neither_stale_nor_inserted(merge):
    good = [event("c", {"id": 1, "name": "a"}, lsn=1), event("c", {"id": 9, "name": "i"}, lsn=2)]
    deleted = [event("d", {"id": 9}, lsn=8), None, event("u", {"id": 1, "name": "old"}, lsn=0)]
    parse = Debezium("value", into=("id", "name"))
    table = merge(parse, "id INT, name STRING, _sequence BIGINT", CHANGES, [*good, *BROKEN], [*deleted, *BROKEN])
    assert [(row["id"], row["name"]) for row in rows_of(table.name)] == [(1, "a")]
    reasons = [row["_errors"][0]["message"].partition(" is no change event: ")[2] for row in rows_of(table.quarantine)]
    assert sorted(reasons) == sorted([*BROKEN.values()] * 2)
    assert outcomes(table) == [{"inserted": 2}, {"deleted": 1, "unchanged": 1, "tombstones": 1}]


def test_verify_tells_tombstones_from_what_else_changes_nothing(merge):
    messages = [event("c", {"id": 1, "name": "a"}, lsn=1), None, event("u", {"id": 1, "name": "b"}, lsn=2)]
    table = merge(Debezium("value", into=("id", "name")), "id INT, name STRING, _sequence BIGINT", CHANGES, messages)
    log = locations.table_path(table.name) / "_delta_log"
    commit = log / f"{DeltaLog(log.parent).newest:020}.json"
    text = commit.read_text()
    counted = '\\"stale\\": 1, \\"truncates\\": 0'
    assert counted in text and '\\"tombstones\\": 1' in text
    commit.write_text(text.replace(counted, counted.replace("1", "0")).replace('tombstones\\": 1', 'tombstones\\": 2'))
    with pytest.raises(LedgerMismatch, match="counts 2 tombstones, and bronze.* holds 1 records without a value"):
        verify.verify(table)


def test_rows_that_debezium_has_unwrapped_are_merged_and_their_tombstones_change_nothing(merge):
    rows = [
        {"id": 1, "name": "a", "__op": "c", "__source_lsn": 1},
        {"id": 1, "name": "b", "__op": "u", "__lsn": 3},
        {"id": 2, "name": "c", "__deleted": "false", "__source_lsn": 4},
        {"id": 3, "name": "no operation"},
    ]
    deleted = {"id": 2, "name": None, "__op": "d", "__deleted": "true", "__source_lsn": 6}
    late = {"id": 2, "name": "late", "__op": "u", "__deleted": "false", "__source_lsn": 5}
    batches = [[json.dumps(row).encode() for row in rows], [json.dumps(deleted).encode(), None]]
    parse = Debezium("value", into=("id", "name"), unwrapped=True, tombstones=True)
    schema = "id INT, name STRING, _sequence BIGINT"
    table = merge(parse, schema, CHANGES, *batches, [json.dumps(late).encode()])
    assert [(row["id"], row["name"]) for row in rows_of(table.name)] == [(1, "b")]
    [broken] = rows_of(table.quarantine)
    assert "it has no __op" in broken["_errors"][0]["message"]
    assert outcomes(table) == [{"inserted": 2, "stale": 1}, {"deleted": 1, "tombstones": 1}, {"unchanged": 1}]


@pytest.mark.parametrize(
    ("sequence", "kind", "places"),
    [
        pytest.param("lsn", "BIGINT", [{"lsn": "0/FFFFFFFF"}, {"lsn": "1/A"}, {"lsn": "1/B3748"}], id="PostgreSQL"),
        pytest.param(
            ("file", "pos", "row"),
            "STRING",
            [
                {"file": "mysql-bin.000999", "pos": 900, "row": 2},
                {"file": "mysql-bin.000999", "pos": 1000, "row": 0},
                {"file": "mysql-bin.1000000", "pos": 4, "row": 0},
            ],
            id="MySQL",
        ),
        pytest.param(
            ("change_lsn", "event_serial_no"),
            "STRING",
            [
                {"change_lsn": "00000027:00000ac0:0002", "event_serial_no": 9},
                {"change_lsn": "00000027:00000AC0:000a", "event_serial_no": 1},
                {"change_lsn": "00000027:00000ac0:000a", "event_serial_no": 10},
            ],
            id="SQL Server",
            marks=only_in_full_runs,
        ),
        pytest.param(
            "scn",
            "STRING",
            [{"scn": "999"}, {"scn": "1000"}, {"scn": "12345678901234567890"}],
            id="Oracle",
            marks=only_in_full_runs,
        ),
    ],
)
def test_the_order_of_changes_is_that_of_the_database_and_rows_of_a_snapshot_come_first(merge, sequence, kind, places):
    none = dict.fromkeys(places[0])
    snapshot = [event("r", {"id": 1, "name": "snapshot"}, **none), event("r", {"id": 2, "name": "snapshot"}, **none)]
    first, second, third = (
        event("u", {"id": 1, "name": name}, **place) for name, place in zip("abc", places, strict=True)
    )
    without_place = event("u", {"id": 3, "name": "nowhere"}, **none)
    parse, schema = Debezium("value", into=("id", "name"), sequence=sequence), f"id INT, name STRING, _sequence {kind}"
    write = Upsert(("id",), sequence_by="_sequence", deletes="_op = 'd'", scd=2)
    table = merge(parse, schema, write, [third, *snapshot], [second, without_place], [first, *snapshot])
    history = sorted((row["id"], row["valid_from"], row["valid_to"], row["name"]) for row in rows_of(table.name))
    begins = [begin for key, begin, _, _ in history if key == 1]
    assert [name for *_, name in history] == ["snapshot", "a", "b", "c", "snapshot"]
    assert [end for key, _, end, _ in history if key == 1] == [*begins[1:], None]
    [broken] = rows_of(table.quarantine)
    assert broken["_errors"][0]["message"].startswith("the change has no source.")


@on_both_paths
def test_a_value_that_was_not_sent_leaves_the_stored_one_as_it_is_in_a_table_of_partial_changes(merge):
    unsent = "__debezium_unavailable_value"
    insert = event("c", {"id": 1, "data": "AQI=", "tags": '["a"]', "name": "a"}, lsn=1)
    update = event(
        "u", {"id": 1, "data": "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==", "tags": [unsent], "name": "b"}, lsn=2
    )
    write = Upsert(("id",), sequence_by="_sequence", deletes="_op = 'd'", partial=True)
    parse = Debezium("value", into=("id", "data", "tags", "name"), placeholder=unsent)
    schema = "id INT, data BINARY, tags STRING, name STRING, _sequence BIGINT"
    table = merge(parse, schema, write, [insert], [update])
    [row] = rows_of(table.name)
    assert (row["data"], row["tags"], row["name"], row["_errors"]) == (b"\x01\x02", '["a"]', "b", [])
