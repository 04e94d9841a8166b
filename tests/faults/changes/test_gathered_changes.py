"""Changes of keys are gathered, and merged in the windows of their table."""

from include.delta.delta_log import DeltaLog
from include.lake import locations
from include.ledger import verify
from include.spec import Delta, Flow, Upsert
from tests.support.flows import rows_of

CHANGES = "id INT, place STRING, seq INT, op STRING"


def change(id_: int, place: str | None, seq: int, op: str = "u") -> dict:
    return {"id": id_, "place": place, "seq": seq, "op": op}


def test_each_window_merges_what_has_come_since_the_last_one(name, append, maintain):
    table = Flow(
        name=f"silver.{name}",
        comment="places",
        source=Delta(f"bronze.{name}"),
        schema="id INT, place STRING, seq INT",
        write=Upsert(("id",), sequence_by="seq", deletes="op = 'd'", in_windows=True),
    )
    append(f"bronze.{name}", [change(1, "north", 1), change(2, "south", 4)], CHANGES)
    append(f"bronze.{name}", [change(2, None, 5, "d"), change(3, "west", 2)], CHANGES)
    assert maintain(table).state == "done"
    append(f"bronze.{name}", [change(2, "east", 3), change(1, "ulm", 6), change(1, "north", 1)], CHANGES)
    assert {row["id"]: row["place"] for row in rows_of(table.name)} == {1: "north", 3: "west"}
    assert maintain(table).state == "done"
    assert {row["id"]: row["place"] for row in rows_of(table.name)} == {1: "ulm", 3: "west"}
    assert verify.verify(table).batches == 2
    assert DeltaLog(locations.table_path(table.retained)).newest > 0
