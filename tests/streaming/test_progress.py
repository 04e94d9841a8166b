"""The query progress of real flows is stored. A flow continues if its progress cannot be stored."""

import json
import shutil
from dataclasses import replace

import pytest

from include import catalog
from include.delta import stored_table
from include.errors import FlowFailed
from include.monitoring import query_progress
from include.monitoring.query_progress import gather
from include.settings import settings
from include.spec import Append, Delta, Expect, Flow, Table
from tests.support.flows import Driver, rows_of
from tests.support.waiting import wait_until


@pytest.fixture
def flow(name: str, append) -> Table:
    append(f"bronze.{name}", [{"number": 1}, {"number": 2}], "number INT")
    return Flow(
        name=f"silver.{name}",
        comment="numbers",
        source=Delta(f"bronze.{name}"),
        schema="number INT",
        expect=(Expect("is small", "number < 10", otherwise="fail"),),
        write=Append(),
        interval_seconds=0.1,
    )


@pytest.fixture
def driver(spark, name: str, flow: Table, monkeypatch: pytest.MonkeyPatch):
    running_driver = Driver(spark, name, (flow,), is_supervised=True)
    monkeypatch.setattr(catalog, "reload", lambda: catalog.Catalog({flow.name: flow}))
    running_driver.start()
    yield running_driver
    running_driver.end()


def progress_of(flow: Table) -> list[dict]:
    """The progress rows of the flow, oldest first, after all journals are gathered."""
    gather()
    if stored_table.find_table(query_progress.TABLE) is None:
        return []
    return sorted((row for row in rows_of(query_progress.TABLE) if row["flow"] == flow.flow), key=lambda row: row["at"])


def test_busy_idle_and_failed_batches_of_a_flow_come_into_the_table(flow: Table, driver: Driver, append):
    wait_until(lambda: {row["event"] for row in query_progress.newest(flow.flow, 50)} >= {"batch", "idle"}, 120)
    append(f"bronze.{flow.name.partition('.')[2]}", [{"number": 10}], "number INT")
    wait_until(lambda: any(row["event"] == "failed" for row in query_progress.newest(flow.flow, 50)), 120)
    progress = progress_of(flow)
    batch_row, idle_row, failed_row = (
        next(row for row in progress if row["event"] == event) for event in ("batch", "idle", "failed")
    )
    assert (batch_row["generation"], batch_row["batch"], batch_row["input_rows"], batch_row["driver"]) == (
        1,
        0,
        2,
        driver.name,
    )
    assert json.loads(batch_row["end_offset"])["reservoirVersion"] == 1
    assert batch_row["trigger_execution_ms"] >= batch_row["add_batch_ms"] > 0
    assert json.loads(batch_row["raw"])["batchId"] == 0
    assert idle_row["input_rows"] == 0
    assert idle_row["add_batch_ms"] is None
    assert (failed_row["generation"], failed_row["batch"]) == (1, 1)
    assert "is small" in failed_row["error"]
    assert batch_row["run_id"] == idle_row["run_id"] == failed_row["run_id"]


def test_every_batch_of_a_run_comes_once_and_then_its_end(flow: Table, run_once, append):
    bronze = f"bronze.{flow.name.partition('.')[2]}"
    for number in range(3, 6):
        append(bronze, [{"number": number}], "number INT")
    run_once(replace(flow, source=Delta(bronze, max_files=1)))
    progress = progress_of(flow)
    assert [(row["event"], row["batch"]) for row in progress if row["event"] != "idle"] == [
        *(("batch", number) for number in range(len(progress) - 1)),
        ("ended", None),
    ]
    assert len(progress) > 4
    assert sum(row["input_rows"] for row in progress[:-1]) == 5
    assert sum(row["output_rows"] or 0 for row in progress[:-1]) == 5
    # The time since the batch before is not known of the first one.
    assert all(row["input_rows_per_second"] > 0 for row in progress[1:-1] if row["input_rows"])


def test_a_flow_does_not_care_that_nobody_can_write_down_how_it_does(flow: Table, driver: Driver, append, caplog):
    wait_until(lambda: query_progress.newest(flow.flow, 1), 120)
    shutil.rmtree(settings().journals)
    # This file prevents the creation of the directory.
    settings().journals.write_text("in the way")
    try:
        for number in range(3, 6):
            append(f"bronze.{flow.name.partition('.')[2]}", [{"number": number}], "number INT")
            wait_until(lambda number=number: {"number": number} in rows_of(flow.name), 120)
        # The driver fetches progress less often than batches end.
        wait_until(lambda: "query progress cannot be stored for now" in caplog.text, 60)
    finally:
        settings().journals.unlink()
    assert driver.query(flow).isActive
    assert caplog.text.count("query progress cannot be stored for now") == 1
    # Spark keeps the progress that could not be written.
    wait_until(lambda: sum(row["input_rows"] or 0 for row in query_progress.newest(flow.flow, 50)) == 3, 60)


def test_a_flow_that_fails_by_hand_is_told_too(flow: Table, run_once, append):
    append(f"bronze.{flow.name.partition('.')[2]}", [{"number": 10}], "number INT")
    with pytest.raises(FlowFailed):
        run_once(flow)
    (progress_row,) = progress_of(flow)
    assert (progress_row["event"], progress_row["batch"]) == ("failed", 0)
