"""Both directions: the origin of a version, and the way of a record or a file through the tables."""

import json
import sys
import uuid

import pyarrow
import pytest
from deltalake import DeltaTable, write_deltalake

from include.catalog import Catalog
from include.checkpoints.offset_ranges import OffsetRange
from include.cli import main as cli
from include.cli.rows import origin_lines
from include.errors import UsageError
from include.lake import locations
from include.ledger import explain
from include.spec import Expect, Files, Flow, Kafka
from tests.support.account import StoredTable, delta, kafka_rows, reader

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
PLACE_SCHEMA = pyarrow.schema([("partition", pyarrow.int32()), ("offset", pyarrow.int64())])


def end_offset(offset: int) -> dict:
    return {"t": {"0": offset}}


def place_rows(*offsets: int) -> pyarrow.Table:
    return pyarrow.table({"partition": [0] * len(offsets), "offset": list(offsets)}, schema=PLACE_SCHEMA)


class Pipeline:
    """Bronze has three batches of ten records, and gold has no column of Kafka's.

    Silver has two batches, which quarantine one record and drop another.
    """

    def __init__(self) -> None:
        name = f"t{uuid.uuid4().hex[:12]}"
        self.bronze = StoredTable(Flow(name=f"bronze.{name}", comment="", source=Kafka("t")))
        self.bronze.create(kafka_rows(0, 0))
        for batch in range(3):
            begin = end_offset(batch * 10) if batch else None
            self.bronze.batch(batch, begin, end_offset(batch * 10 + 10), kafka_rows(batch * 10, batch * 10 + 10))
        silver = reader(
            name, f"bronze.{name}", expect=(Expect("odd", "true"), Expect("small", "true", otherwise="drop"))
        )
        self.silver = StoredTable(silver, {"table": f"bronze.{name}"})
        self.silver.create(place_rows())
        self.silver.batch(0, None, delta(3), place_rows(*range(20)), row_counts(20, 20))
        write_deltalake(str(locations.table_path(silver.quarantine)), quarantined_row(silver.flow, 25), mode="append")
        kept_rows = place_rows(20, 21, 22, 23, 24, 26, 28, 29)
        self.silver.batch(1, delta(3), delta(4), kept_rows, row_counts(10, 8, quarantined=1, dropped=1))
        self.gold = StoredTable(reader(name, silver.name, "gold"), {"table": silver.name})
        self.gold.create(pyarrow.table({"id": pyarrow.array([], pyarrow.int64())}))
        self.gold.batch(0, None, delta(3), pyarrow.table({"id": [1]}))
        self.tables = Catalog(
            {stored_table.table.name: stored_table.table for stored_table in (self.bronze, self.silver, self.gold)}
        )


def row_counts(read: int, kept: int, quarantined: int = 0, dropped: int = 0) -> dict:
    broke = {"odd": quarantined, "small": dropped}
    return {"read": read, "kept": kept, "quarantined": quarantined, "dropped": dropped, "broke": broke}


def quarantined_row(flow: str, offset: int) -> pyarrow.Table:
    rows = place_rows(offset)
    for column, value in (("_rules", ["odd"]), ("_flow", flow), ("_generation", 1), ("_batch", 1)):
        rows = rows.append_column(column, pyarrow.array([value]))
    return rows


@pytest.fixture(scope="module")
def made() -> Pipeline:
    """Its tests only read. A test that writes makes its own Pipeline."""
    return Pipeline()


def test_a_version_is_followed_up_to_the_offsets_that_are_in_it(made):
    origin = explain.of_version(made.tables, made.silver.table, 2)
    assert [(read.version, read.index, read.rows) for read in origin.reads] == [(3, 0, 10)]
    assert origin.above is not None
    assert origin.above.ranges == [OffsetRange("t", 0, 20, 30)]
    assert "  t/0 20 to 29" in list(origin_lines(origin))


def test_over_two_tables_the_offsets_of_all_batches_are_joined(made):
    origin = explain.of_version(made.tables, made.gold.table, 1)
    assert origin.above is not None
    assert origin.above.above is not None
    assert origin.above.above.ranges == [OffsetRange("t", 0, 0, 30)]


def test_a_version_that_is_no_batch_or_not_there_is_refused(made):
    with pytest.raises(UsageError, match="version 0 of bronze.* is a CREATE TABLE"):
        explain.of_version(made.tables, made.bronze.table, 0)
    with pytest.raises(UsageError, match="--version is 9, and the log of bronze.* holds 0 to 3: name one of these"):
        explain.of_version(made.tables, made.bronze.table, 9)


def follow(pipeline: Pipeline, offset: int) -> tuple[explain.TraceStep, explain.TraceStep, explain.TraceStep]:
    [bronze] = [
        step for step in explain.of_record(pipeline.tables, "t", 0, offset) if step.table == pipeline.bronze.table.name
    ]
    [silver] = bronze.below
    [gold] = silver.below
    return bronze, silver, gold


def test_a_record_is_followed_down_to_every_table_that_can_hold_it(made):
    bronze, silver, gold = follow(made, 21)
    assert (bronze.versions, bronze.rows) == ((3,), 1)
    assert (silver.versions, silver.rows, silver.rules) == ((2,), 1, ())
    assert (gold.versions, gold.rows) == ((1,), None)
    assert "one of these versions holds it, if any does" in gold.sentence


def test_a_record_in_quarantine_is_told_with_the_rule_it_broke(made):
    _, silver, _ = follow(made, 25)
    assert (silver.rows, silver.rules) == (0, ("odd",))
    assert f"it is in {made.silver.table.quarantine}, as it broke 'odd'" in silver.sentence


def test_a_record_that_is_nowhere_is_told_with_what_its_batch_dropped(made):
    _, silver, _ = follow(made, 27)
    assert (silver.rows, silver.rules) == (0, ())
    assert "these batches dropped 1 rows (broken: 'odd', 'small') and left out 0" in silver.sentence


def test_a_record_that_no_batch_has_read_and_an_unknown_topic_are_named():
    # The planned batch must not be visible to the tests that share `made`.
    pipeline = Pipeline()
    [step] = explain.of_record(pipeline.tables, "t", 0, 30)
    assert step.sentence.endswith("offset 30 of t/0 no batch has read yet")
    pipeline.bronze.plan(3, end_offset(35))
    [step] = explain.of_record(pipeline.tables, "t", 0, 30)
    assert step.sentence.endswith(f"is in batch {pipeline.bronze.table.name} 1/3, which is planned and not written")
    with pytest.raises(UsageError, match="--topic is 'other', and no batch of a stored table has read it"):
        explain.of_record(pipeline.tables, "other", 0, 1)


def test_a_file_is_followed_to_the_version_that_brought_it_and_its_rows_are_counted(tmp_path):
    name = f"t{uuid.uuid4().hex[:12]}"
    table = Flow(name=f"bronze.{name}", comment="", source=Files(str(tmp_path), format="csv"))
    stored_table = StoredTable(table, {"folder": str(tmp_path)})
    rows = pyarrow.table({"_filename": ["b.csv"] * 3, "_index": [0, 1, 2]})
    stored_table.create(rows.slice(0, 0))
    for entry, file in enumerate(("a.csv", "b.csv")):
        log = {"path": f"file://{tmp_path}/{file}", "timestamp": 5, "batchId": entry}
        stored_table.write(f"sources/0/{entry}", f"v1\n{json.dumps(log)}")
        begin = {"logOffset": entry - 1} if entry else None
        stored_table.batch(entry, begin, {"logOffset": entry}, rows if entry else rows.slice(0, 0))
    step = explain.of_file(Catalog({table.name: table}), table, "b.csv")
    assert (step.versions, step.rows) == ((2,), 3)
    assert explain.of_file(Catalog({table.name: table}), table, "a.csv").rows == 0
    assert "no batch has read yet" in explain.of_file(Catalog({table.name: table}), table, "c.csv").sentence
    origin = explain.of_version(Catalog({table.name: table}), table, 2)
    assert origin.files == [f"{tmp_path}/b.csv"]
    assert DeltaTable(stored_table.path).version() == 2


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("bronze.clicks",),
        ("bronze.clicks", "--version", "1", "--file", "a.json"),
        ("bronze.clicks", "--version", "1", "--partition", "0"),
        ("bronze.clicks", "--topic", "t", "--partition", "0", "--offset", "1"),
        ("--topic", "t", "--partition", "0"),
        ("--version", "1"),
    ],
)
def test_a_call_that_names_no_form_or_parts_of_several_is_refused(arguments, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["ledger", "explain", *arguments])
    with pytest.raises(UsageError, match=r"^explain takes TABLE --version N, TABLE --file NAME, or --topic T"):
        cli.main()
