"""`python -m include.ledger quarantine`: the reasons of quarantined rows, newest first, without a JVM."""

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from sqlalchemy import select

from include import catalog
from include.catalog import Catalog
from include.cli import main as cli
from include.control import personal_data
from include.control.store import database
from include.control.store.schema import audits
from include.errors import UsageError
from include.lake import locations
from include.ledger import quarantine
from include.settings import settings
from include.spec import Delta, Expect, Flow
from tests.support import lake

TABLE, QUARANTINE = "silver.readings", "quarantine.silver_readings"
STRICT = Flow(
    name=TABLE, comment="", source=Delta("bronze.readings"), expect=(Expect("identified", "device_id IS NOT NULL"),)
)
LENIENT = Flow(name="gold.readings", comment="", source=Delta(TABLE))
SCHEMA = pa.schema(
    {
        "device_id": pa.string(),
        "heart_bpm": pa.int32(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "_errors": pa.list_(pa.struct({"field": pa.string(), "message": pa.string()})),
        "_rules": pa.list_(pa.string()),
        "_flow": pa.string(),
        "_generation": pa.int32(),
        "_batch": pa.int64(),
        "_source": pa.string(),
        "_replay": pa.int64(),
    }
)
UNTYPED = [{"field": "heart_bpm", "message": "'many' is no INT"}]


def broken_row(batch: int, offset: int, *rules: str, errors: list[dict] | None = None) -> dict:
    origin = {"topic": "readings", "partition": 0, "offset": offset}
    metadata = {"_flow": TABLE, "_generation": 1, "_batch": batch, "_source": '{"reservoirVersion": 7}'}
    return {"device_id": f"d{offset}", "heart_bpm": 300, **origin, "_errors": errors, "_rules": rules, **metadata}


def store(at: float, batch: int, *rows: dict) -> str:
    """Writes a file of these rows to the quarantine, and its commit. Returns the name of the file."""
    name = f"{at:.0f}.parquet"
    path = locations.table_path(QUARANTINE) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(list(rows), SCHEMA), path)
    lake.write(QUARANTINE, at, lake.data(name, len(rows), at), flow=TABLE, generation=1, batch=batch)
    return name


@pytest.fixture
def ask(home, monkeypatch, capsys):
    """Runs the command, and returns its output."""

    tables = Catalog({table.name: table for table in (STRICT, LENIENT)})
    monkeypatch.setattr(catalog, "load", lambda: tables)

    def run(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["ledger", "quarantine", *arguments])
        cli.main()
        return capsys.readouterr().out

    return run


def test_the_newest_rows_come_first_each_with_its_reasons_and_where_it_came_from(ask):
    store(1_800_000_000, 4, broken_row(4, 10, "identified"), broken_row(4, 11, "plausible heart rate"))
    store(1_800_000_060, 5, broken_row(5, 12, "identified", "plausible heart rate", errors=UNTYPED))
    lines = ask(TABLE, "--limit", "2").splitlines()
    assert lines[:3] == [
        f"{QUARANTINE}: 3 rows; the newest 2 of them are shown",
        "  2 rows are here by 'identified'",
        "  2 rows are here by 'plausible heart rate'",
    ]
    assert lines[3:6] == [
        f"{TABLE} 1/5  2027-01-15 08:01:00Z  'identified', 'plausible heart rate'  readings/0 offset 12",
        "    heart_bpm: 'many' is no INT",
        "    device_id=d12, heart_bpm=300",
    ]
    assert lines[6].startswith(f"{TABLE} 1/4  2027-01-15 08:00:00Z  ")
    document = json.loads(ask(QUARANTINE, "--json"))
    assert (document["total"], document["counted"]) == (3, 3)
    assert [row["origin"]["offset"] for row in document["rows"]][0] == 12
    assert (document["rows"][0]["errors"], document["rows"][0]["source_to"]) == (UNTYPED, {"reservoirVersion": 7})


def test_files_that_are_not_needed_are_not_opened(ask, monkeypatch):
    oldest = store(1_800_000_000, 4, broken_row(4, 10, "identified"))
    store(1_800_000_060, 5, broken_row(5, 11, "identified"), broken_row(5, 12, "identified"))
    (locations.table_path(QUARANTINE) / oldest).unlink()
    monkeypatch.setattr(quarantine, "MOST_COUNTED_ROWS", 2)
    lines = ask(TABLE, "--limit", "1").splitlines()
    assert lines[0] == f"{QUARANTINE}: 3 rows; the newest 1 of them are shown"
    assert lines[1] == "  2 rows of the newest 2 are here by 'identified'"


def test_rows_of_a_compacted_file_have_the_time_at_which_their_batch_put_them_there(ask):
    rows = [broken_row(4, 10, "identified"), broken_row(5, 11, "identified")]
    files = [store(1_800_000_000, 4, rows[0]), store(1_800_000_060, 5, rows[1])]
    path = locations.table_path(QUARANTINE)
    parquet.write_table(pa.Table.from_pylist(rows, SCHEMA), path / "both.parquet")
    removes = [{"remove": {"path": file, "deletionTimestamp": 1_900_000_000_000}} for file in files]
    lake.write(QUARANTINE, 1_900_000_000, *removes, lake.data("both.parquet", 2, 1_900_000_000, dataChange=False))
    printed_rows = json.loads(ask(TABLE, "--json"))["rows"]
    assert [(row["batch"], row["at"]) for row in printed_rows] == [(5, 1_800_000_060), (4, 1_800_000_000)]


def test_without_a_quarantine_it_says_so(ask):
    assert ask(TABLE) == f"{QUARANTINE} holds no rows\n"
    assert ask("gold.readings") == "no rule of gold.readings quarantines\n"
    assert json.loads(ask(TABLE, "--json"))["rows"] == []


def test_values_that_python_does_not_know_are_shown_beside_the_others(ask):
    no_text, no_time = pa.array([b"a\xff"], pa.binary()).view(pa.string()), pa.array([2**60], pa.timestamp("us"))
    struct = pa.StructArray.from_arrays([no_text, no_time, pa.array([1])], ["text", "at", "number"])
    nested = pa.ListArray.from_arrays([0, 2], pa.concat_arrays([struct, pa.nulls(1, struct.type)]))
    pairs = pa.MapArray.from_arrays([0, 1], pa.array(["k"]), no_text)
    row = pa.Table.from_pylist([broken_row(1, 7, "identified")], SCHEMA).set_column(0, "device_id", no_text)
    for name, values in {"at": no_time, "nested": nested, "pairs": pairs}.items():
        row = row.append_column(name, values)
    path = locations.table_path(QUARANTINE) / "odd.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(row, path)
    lake.write(QUARANTINE, 5, lake.data("odd.parquet", 1, 5), flow=TABLE, generation=1, batch=1)
    lines = ask(TABLE)
    assert "device_id=a\\xff, heart_bpm=300" in lines
    [shown] = json.loads(ask(TABLE, "--json"))["rows"]
    assert shown["origin"]["offset"] == 7
    assert (shown["row"]["device_id"], shown["row"]["heart_bpm"]) == ("a\\xff", 300)
    assert shown["row"]["at"] == f"{2**60} timestamp[us]"
    assert shown["row"]["nested"] == [{"text": "a\\xff", "at": f"{2**60} timestamp[us]", "number": 1}, None]
    assert shown["row"]["pairs"] == [["k", "a\\xff"]]


def test_what_a_row_holds_cannot_break_its_line_or_command_the_terminal(ask):
    hostile = [{"field": "heart_bpm", "message": "'1\n2\r\x1b[2J\u202e\u2028' is no INT"}]
    store(5, 1, broken_row(1, 7, "identified", errors=hostile) | {"device_id": "\x1b]0;x\x07"})
    output = ask(TABLE)
    assert "'1\\n2\\r\\x1b[2J\\u202e\\u2028' is no INT" in output
    assert all(character.isprintable() or character == "\n" for character in output)


SECRET = replace(STRICT, schema="device_id STRING, heart_bpm INT", personal=("device_id",))


def test_values_of_personal_columns_are_shown_only_to_a_person_who_says_why_for_the_audit(ask, monkeypatch):
    monkeypatch.setattr(catalog, "load", lambda: Catalog({TABLE: SECRET}))
    store(1_800_000_000, 4, broken_row(4, 10, "identified"))
    hidden = ask(TABLE, "--json")
    assert '"d10"' not in hidden and '"offset": 10' in hidden and '"heart_bpm": 300' in hidden
    with pytest.raises(UsageError, match="reason"):
        ask(TABLE, "--show-personal")
    assert '"device_id": "d10"' in ask(TABLE, "--json", "--show-personal", "--reason", "a complaint")
    with database.reading(database.connect(settings().control_url)) as connection:
        [line] = connection.execute(select(audits).where(audits.c.action == personal_data.ACTION)).all()
    assert (line.target, line.reason) == (TABLE, "a complaint")
