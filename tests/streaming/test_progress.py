"""What becomes of query progress: of real flows, which do not care whether anybody can write it down."""

import json
import shutil
from dataclasses import replace

import pytest

from include import catalog
from include.errors import FlowFailed
from include.monitoring import progress_rows
from include.monitoring.progress_table import gather
from include.settings import settings
from include.spec import Append, Delta, Expect, Table
from tests.support.flows import Driver, rows_of
from tests.support.waiting import wait_until


@pytest.fixture
def flow(name: str, append) -> Table:
    append(f"bronze.{name}", [{"number": 1}, {"number": 2}], "number INT")
    return Table(
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
    started = Driver(spark, name, (flow,), is_supervised=True)
    monkeypatch.setattr(catalog, "reload", lambda: catalog.Catalog({flow.name: flow}))
    started.start()
    yield started
    started.end()


def told_of(flow: Table) -> list[dict]:
    """What the table holds of it, oldest first, after all that can be gathered was."""
    gather()
    if progress_rows.stored() is None:
        return []
    return sorted((row for row in rows_of(progress_rows.TABLE) if row["flow"] == flow.flow), key=lambda row: row["at"])


def test_busy_idle_and_failed_batches_of_a_flow_come_into_the_table(flow: Table, driver: Driver, append):
    wait_until(lambda: {row["event"] for row in progress_rows.newest(flow.flow, 50)} >= {"batch", "idle"}, 120)
    append(f"bronze.{flow.name.partition('.')[2]}", [{"number": 10}], "number INT")
    wait_until(lambda: any(row["event"] == "failed" for row in progress_rows.newest(flow.flow, 50)), 120)
    told = told_of(flow)
    batch, idle, failed = (next(row for row in told if row["event"] == event) for event in ("batch", "idle", "failed"))
    assert (batch["generation"], batch["batch"], batch["input_rows"], batch["driver"]) == (1, 0, 2, driver.name)
    assert json.loads(batch["end_offset"])["reservoirVersion"] == 1
    assert batch["trigger_execution_ms"] >= batch["add_batch_ms"] > 0
    assert json.loads(batch["raw"])["batchId"] == 0
    assert idle["input_rows"] == 0
    assert idle["add_batch_ms"] is None
    assert (failed["generation"], failed["batch"]) == (1, 1)
    assert "is small" in failed["error"]
    assert batch["run_id"] == idle["run_id"] == failed["run_id"]


def test_every_batch_of_a_run_comes_once_and_then_its_end(flow: Table, run_once, append):
    bronze = f"bronze.{flow.name.partition('.')[2]}"
    for number in range(3, 6):
        append(bronze, [{"number": number}], "number INT")
    run_once(replace(flow, source=Delta(bronze, max_files=1)))
    told = told_of(flow)
    assert [(row["event"], row["batch"]) for row in told if row["event"] != "idle"] == [
        *(("batch", number) for number in range(len(told) - 1)),
        ("ended", None),
    ]
    assert len(told) > 4
    assert sum(row["input_rows"] for row in told[:-1]) == 5


def test_a_flow_does_not_care_that_nobody_can_write_down_how_it_does(flow: Table, driver: Driver, append, capfd):
    wait_until(lambda: progress_rows.newest(flow.flow, 1), 120)
    shutil.rmtree(settings().journals)
    # Not even a directory can be made there.
    settings().journals.write_text("in the way")
    try:
        for number in range(3, 6):
            append(f"bronze.{flow.name.partition('.')[2]}", [{"number": number}], "number INT")
            wait_until(lambda number=number: {"number": number} in rows_of(flow.name), 120)
        # Progress is fetched less often than batches come.
        printed = []
        wait_until(lambda: printed.append(capfd.readouterr().err) or "not written down for now" in "".join(printed), 60)
    finally:
        settings().journals.unlink()
    assert driver.query(flow).isActive
    printed.append(capfd.readouterr().err)
    assert "".join(printed).count("query progress is not written down for now") == 1
    # Spark still knew what could not be written.
    wait_until(lambda: sum(row["input_rows"] or 0 for row in progress_rows.newest(flow.flow, 50)) == 3, 60)


def test_a_flow_that_fails_by_hand_is_told_too(flow: Table, run_once, append):
    append(f"bronze.{flow.name.partition('.')[2]}", [{"number": 10}], "number INT")
    with pytest.raises(FlowFailed):
        run_once(flow)
    (told,) = told_of(flow)
    assert (told["event"], told["batch"]) == ("failed", 0)
