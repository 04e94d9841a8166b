"""Which tables get an event of their Airflow asset, and what it says."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from sqlalchemy import Engine

from include.control.store import database
from include.lake import locations
from include.monitoring import new_rows
from include.monitoring.new_rows import NewRows
from include.settings import settings

TABLE = "gold.sales"


@pytest.fixture
def engine(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.delenv("SLUICE_CONTROL_URL", raising=False)
    settings.cache_clear()
    yield database.connect(settings().control_url)
    monkeypatch.undo()
    settings.cache_clear()


def append(rows: int, offset: int | None = None, mode: str = "append") -> None:
    metadata = {"flow": TABLE, "source_to": {"orders": {"0": offset}}} if offset else {}
    properties = CommitProperties({"userMetadata": json.dumps(metadata)})
    path = str(locations.table_path(TABLE))
    write_deltalake(path, pa.table({"n": range(rows)}), mode=mode, commit_properties=properties)


def found(engine: Engine, at_least_seconds: float = 0.0) -> list[NewRows]:
    return new_rows.find(engine, [TABLE], at_least_seconds)


def test_a_table_that_is_not_stored_is_not_announced(engine):
    assert found(engine) == []


def test_an_event_counts_the_rows_since_the_last_one_and_says_how_far_the_flow_had_read(engine):
    append(3)
    [first] = found(engine)
    assert (first.version, first.rows) == (0, 3)
    new_rows.record(engine, {TABLE: 0})
    assert found(engine) == []
    append(5, offset=70)
    append(2, offset=72)
    [event] = found(engine)
    assert event == NewRows(TABLE, 2, 7, {TABLE: {"orders": {"0": 72}}})
    assert event.extra() == {"table": TABLE, "version": 2, "rows": 7, "offsets": {TABLE: {"orders": {"0": 72}}}}


def test_an_event_that_airflow_did_not_take_is_emitted_again(engine):
    append(3)
    assert found(engine) == found(engine) != []


def test_a_compaction_brings_no_new_rows(engine):
    append(3)
    append(4)
    new_rows.record(engine, {TABLE: 1})
    DeltaTable(str(locations.table_path(TABLE))).optimize.compact()
    assert DeltaTable(str(locations.table_path(TABLE))).version() == 2
    assert found(engine) == []
    append(1)
    [event] = found(engine)
    assert (event.version, event.rows) == (3, 1)


def test_a_table_gets_no_second_event_within_a_minute(engine):
    append(3)
    new_rows.record(engine, {TABLE: 0})
    append(4)
    assert found(engine, new_rows.BETWEEN_EVENTS_SECONDS) == []
    assert [event.version for event in found(engine)] == [1]


def test_a_table_that_was_created_anew_is_announced_though_its_version_is_lower(engine):
    append(3)
    new_rows.record(engine, {TABLE: 9})
    [event] = found(engine)
    assert (event.version, event.rows) == (0, 3)


def test_a_table_whose_log_is_damaged_is_left_out_and_the_others_are_announced(engine):
    append(3)
    broken = "gold.broken"
    log = Path(str(locations.table_path(broken))) / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text('{"add":{"dataChange":true')
    assert [event.table for event in new_rows.find(engine, [broken, TABLE])] == [TABLE]
