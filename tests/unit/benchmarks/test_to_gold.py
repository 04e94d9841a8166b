"""The time at which a record is in gold. The benchmark reads it from any engine's checkpoints and logs."""

import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks import to_gold
from benchmarks.jobs.sluice import TABLES
from benchmarks.support.engine import Engine
from benchmarks.to_gold import Journal
from include.lake import locations
from tests.support import lake


def commit(layer: str, seconds: float) -> None:
    table = TABLES[layer].name
    version = lake.rows(table, seconds, 10)
    os.utime(locations.table_path(table) / "_delta_log" / f"{version:020}.json", (seconds, seconds))


def batches(layer: str, *commits: tuple[float, Any]) -> Journal:
    """A journal of batches: for each, the time of its commit and its end offset."""
    path = lake.checkpoint(TABLES[layer].flow, *(end for _, end in commits))
    for number, (seconds, _) in enumerate(commits):
        os.utime(path / "commits" / str(number), (seconds, seconds))
    journal = Journal(path)
    journal.look()
    return journal


@pytest.fixture
def engine(home: Path, tmp_path: Path) -> Engine:
    stock_engine = Engine("stock", tmp_path / "engine", "stock.py")
    stock_engine.home = home
    return stock_engine


def topic(count: int) -> dict[str, Any]:
    return {"events": {"0": count}}


def test_records_are_in_gold_when_the_batch_that_read_their_silver_rows_is_done(engine: Engine):
    for layer, commit_times in {"bronze": (10, 20), "silver": (13, 23), "gold": (16, 26)}.items():
        for seconds in commit_times:
            commit(layer, seconds)
    journals = {
        "bronze": batches("bronze", (11, topic(5)), (21, topic(9))),
        "silver": batches("silver", (14, lake.delta_offset(0, index=0)), (24, lake.delta_offset(1, index=0))),
        "gold": batches("gold", (17, lake.delta_offset(0, index=0)), (27, lake.delta_offset(1, index=0))),
    }
    assert to_gold.gold_positions(engine, journals) == [(5, 17), (9, 27)]


def test_records_that_silver_has_not_read_are_not_in_gold(engine: Engine):
    for layer in TABLES:
        commit(layer, 10)
    commit("bronze", 20)
    first_batch = (14, lake.delta_offset(0, index=0))
    journals = {
        "bronze": batches("bronze", (11, topic(5)), (21, topic(9))),
        "silver": batches("silver", first_batch),
        "gold": batches("gold", first_batch),
    }
    assert to_gold.gold_positions(engine, journals) == [(5, 14)]


def test_a_batch_that_spark_has_forgotten_is_remembered(home: Path):
    journal = batches("bronze", (11, topic(5)), (21, topic(9)))
    for name in ("offsets", "commits"):
        (journal.path / name / "0").unlink()
    journal.look()
    assert journal.batches == [(11, 5), (21, 9)]
