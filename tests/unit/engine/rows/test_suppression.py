"""Rows of erased subjects are left out of each batch, whatever else is true of them, and counted."""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from include.control import suppression
from include.control.store import database
from include.control.store.schema import suppressions
from include.errors import FlowBroken
from include.flows.batches import BatchHistory
from include.ledger import erasures, row_outcomes
from include.ledger.erasures import Erasures
from include.ledger.row_outcomes import Batch
from include.rules import SUPPRESSED, Expect, unique
from include.settings import settings
from include.spec import Append, Delta, Flow, Upsert
from tests.support.batches import BatchWriter
from tests.support.flows import rows_of
from tests.support.twins import Source, Twin

SCHEMA = "person STRING, place BIGINT"


@pytest.fixture
def erase() -> Iterator[Callable[..., None]]:
    """`erase("ada")` puts a subject on the suppression list. The list is empty again after the test."""
    engine = database.connect(settings().control_url)

    def add(*subjects: str) -> None:
        suppression.create_key()
        secret = suppression.key()
        with database.transaction(engine) as connection:
            suppression.add(connection, [suppression.mac(secret, subject) for subject in subjects], secret, 1)

    yield add
    with database.transaction(engine) as connection:
        connection.execute(suppressions.delete())
    suppression.key_file().unlink(missing_ok=True)


@pytest.fixture
def table() -> Flow:
    name = f"t{uuid.uuid4().hex[:12]}"
    return Flow(name=f"silver.{name}", comment="x", source=Delta(f"bronze.{name}"), schema=SCHEMA, subject="person")


class Batches:
    """Writes batches of one table, each from a version of its source."""

    def __init__(self, spark: SparkSession, home: Path, is_fast: bool) -> None:
        self._spark, self._home, self._is_fast, self._number = spark, home, is_fast, -1
        self._twin: Twin | None = None

    def write(self, table: Flow, rows: list[tuple]) -> Batch:
        self._number += 1
        source = Source(self._spark, table.source.table, SCHEMA)
        self._twin = self._twin or Twin(self._spark, self._home / "checkpoint", table, self._is_fast)
        self._twin.write(source.append(rows), self._number)
        assert self._twin.newest.metadata["fast_path"] == self._is_fast
        return row_outcomes.batches(table, 1)[0]


@pytest.fixture(params=[False, True], ids=["spark", "fast path"])
def batches(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Batches:
    return Batches(spark, tmp_path, request.param)


def places(name: str) -> list[int]:
    return sorted(row["place"] for row in rows_of(name))


def test_a_late_copy_of_an_erased_subject_is_left_out_and_counted(table, batches, erase):
    batches.write(table, [("ada", 0), ("bob", 1)])
    erase("ada", "eve")
    result = batches.write(table, [("ada", 2), ("bob", 3), (None, 4), ("eve", 5), ("adam", 6)])
    assert places(table.name) == [0, 1, 3, 4, 6]
    assert (result.read, result.written, result.dropped) == (5, 3, 2)
    assert result.broke == {SUPPRESSED.name: 2}
    written = list(BatchHistory(table).batches())
    assert erasures.notes(table.name, Erasures(), written) == ["2 rows of erased subjects were suppressed"]


def test_a_rule_that_quarantines_or_fails_keeps_no_copy_of_an_erased_subject(table, batches, erase):
    strict = replace(
        table, expect=(Expect("is early", "place < 3"), Expect("no ada", "NOT (person <=> 'ada')", "fail"))
    )
    erase("ada")
    result = batches.write(strict, [("ada", 9), ("bob", 8), ("bob", 1)])
    assert (places(table.name), places(table.quarantine)) == ([1], [8])
    assert result.broke["is early"] == 1


def test_an_erased_subject_takes_no_key_from_others(table, batches, erase):
    one_place = replace(table, expect=(unique("place"),))
    erase("ada")
    batches.write(one_place, [("ada", 1), ("bob", 1)])
    assert [row["person"] for row in rows_of(table.name)] == ["bob"]


def test_a_subject_is_an_expression_where_no_column_names_it(table, batches, erase):
    message = replace(table, subject="get_json_object(person, '$.id')")
    erase("4711")
    batches.write(message, [('{"id": 4711}', 1), ('{"id": "4711"}', 2), ('{"id": 47110}', 3), ("4711", 4)])
    assert places(table.name) == [3, 4]


def test_an_upsert_leaves_out_changes_of_erased_subjects(spark, tmp_path, erase):
    name = f"t{uuid.uuid4().hex[:12]}"
    schema = "person STRING, place BIGINT, moment BIGINT"
    table = Flow(
        name=f"silver.{name}",
        comment="x",
        source=Delta(f"bronze.{name}"),
        schema=schema,
        write=Upsert(keys=("person",), sequence_by="moment"),
        subject="person",
    )
    batches = BatchWriter(spark, tmp_path, schema)
    erase("ada")
    batches.write(table, [("ada", 1, 1), ("bob", 2, 1)])
    assert [row["person"] for row in rows_of(table.name)] == ["bob"]


def test_without_its_key_the_suppression_list_lets_no_batch_pass(table, batches, erase):
    erase("ada")
    suppression.key_file().unlink()
    with pytest.raises(FlowBroken, match="the key of the suppression list is missing"):
        batches.write(table, [("bob", 1)])
    suppression.create_key()
    with pytest.raises(FlowBroken, match="is another key than the suppression list was made with"):
        batches.write(table, [("bob", 1)])


def test_a_table_without_a_subject_pays_nothing_and_keeps_all(table, batches, erase):
    erase("ada")
    batches.write(replace(table, subject=None, write=Append()), [("ada", 1)])
    assert places(table.name) == [1]
