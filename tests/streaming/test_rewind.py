"""A table and all that is made of it go back to a moment together, and make again exactly what was undone."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from include.ledger import verification
from include.rules import Expect
from include.spec import Bucket, Delta, Replace, Table, Upsert
from tests.flows import rows_of
from tests.rewinds import Rewinds, moment_of

SOURCE = "number INT, place BIGINT"


def numbers(rows):
    return rows.selectExpr("number", "timestamp_seconds(number) AS time", "place")


def wrong(rows):
    return rows.selectExpr("number * 10 AS number", "timestamp_seconds(number) AS time", "place")


def sums(rows):
    from pyspark.sql import functions as F

    return rows.groupBy("minute").agg(F.sum("number").alias("total"), F.count("*").alias("rows"))


@pytest.fixture
def silver(name: str) -> Table:
    return Table(
        name=f"silver.{name}",
        comment="numbers",
        source=Delta(f"bronze.{name}"),
        schema="number INT, time TIMESTAMP, place BIGINT",
        transform=numbers,
        expect=(Expect("is_small", "number < 1000"),),
    )


@pytest.fixture
def gold(name: str) -> Table:
    return Table(
        name=f"gold.{name}",
        comment="sums",
        source=Delta(f"silver.{name}"),
        schema="minute TIMESTAMP, total BIGINT, rows BIGINT",
        transform=sums,
        write=Upsert(keys=("minute",), recompute=Bucket("minute", of="time", unit="minute")),
    )


@pytest.fixture
def copy(name: str) -> Table:
    """Appends of silver, once more."""
    return Table(
        name=f"gold.{name}_copy", comment="as it is", source=Delta(f"silver.{name}"), schema="number INT, place BIGINT"
    )


@pytest.fixture
def view(name: str) -> Table:
    return Table(
        name=f"gold.{name}_view",
        comment="the greatest",
        source=Delta(f"silver.{name}"),
        schema="most INT",
        transform="SELECT max(number) AS most FROM source",
        write=Replace(),
    )


@pytest.fixture
def bring(append, name) -> Callable[..., None]:
    """One more commit of bronze: `bring(1, 2, 61)`."""
    brought = Counter()

    def write(*found: int | None) -> None:
        rows = [{"number": number, "place": brought.total() + n} for n, number in enumerate(found)]
        brought.update(rows=len(rows))
        append(f"bronze.{name}", rows, SOURCE)

    return write


def held(table: Table | str) -> list[tuple[int, int]]:
    """Place and number of each row."""
    name = table if isinstance(table, str) else table.name
    return sorted((row["place"], row["number"]) for row in rows_of(name))


def totals(table: Table) -> dict[int, tuple[int, int]]:
    """By minute, their sum and how many there were."""
    return {int(row["minute"].timestamp()) // 60: (row["total"], row["rows"]) for row in rows_of(table.name)}


def test_what_a_wrong_transform_made_is_undone_and_made_again_by_the_mended_one(
    silver, gold, copy, bring, run_once, spark
):
    bring(1, 61, None)
    run_once(silver, gold, copy)
    moment = moment_of(copy)
    bring(2, 62, 130, 2000)
    bring(3)
    run_once(replace(silver, transform=wrong), gold, copy)
    assert totals(gold)[1] == (61 + 620, 2)
    done = Rewinds(spark, silver, gold, copy).run(silver, moment)
    assert done.phase == "done"
    # As it was at that moment, with nothing of what came later.
    assert held(silver) == held(copy) == [(0, 1), (1, 61)]
    assert totals(gold) == {0: (1, 1), 1: (61, 1)}
    assert {row["place"] for row in rows_of(silver.quarantine)} == {2}
    bring(63)
    run_once(silver, gold, copy)
    assert held(silver) == held(copy) == [(0, 1), (1, 61), (3, 2), (4, 62), (5, 130), (7, 3), (8, 63)]
    assert totals(gold) == {0: (6, 3), 1: (61 + 62 + 63, 3), 2: (130, 1)}
    assert {row["place"] for row in rows_of(silver.quarantine)} == {2, 6}
    for table in (silver, gold, copy):
        verification.verify(table)
