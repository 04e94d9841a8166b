"""A driver on a standalone cluster follows the decisions about its executors, and no row is lost or doubled by that.

The master and the workers run in the driver's JVM (`local-cluster`); each executor is a process of its own.
"""

from pathlib import Path

import psutil
import pytest
from sqlalchemy import update

from include import catalog
from include.airflow.supervisor import executors
from include.control.flows import sizing
from include.control.flows.scale import Batch, Load, Reason
from include.control.store import database
from include.control.store.schema import scale_decisions
from include.monitoring import load
from include.settings import settings
from tests.support.flows import only_in_full_runs
from tests.support.pipeline import TABLES, Pipeline
from tests.support.waiting import wait_until

BOUNDS = (1, 3)
WAIT_SECONDS = 600
BATCHES = tuple(Batch(rows, 0.5 + rows / 1_000, 1) for rows in (500, 1_000, 2_000, 4_000, 8_000))
BUSY = Load("bronze.tracker_events", 1_500.0, 300_000, 3, BATCHES)
IDLE = Load("bronze.tracker_events", 1.0, 0, 3, BATCHES)


def decide(pipeline: Pipeline, flow_load: Load) -> Reason:
    """A decision a minute after the one before."""
    with database.transaction(pipeline.control) as connection:
        connection.execute(update(scale_decisions).values(at=scale_decisions.c.at - 60))
    decision = sizing.settle(pipeline.control, "main", BOUNDS, 600.0, (flow_load,))
    assert decision
    return decision.reason


def executor_count(driver: int) -> int:
    """The executors that live. driver: the process id of its JVM."""
    found = 0
    for process in psutil.Process(driver).children(recursive=True):
        try:
            found += "CoarseGrainedExecutorBackend" in " ".join(process.cmdline())
        except psutil.Error:
            continue
    return found


@pytest.fixture
def as_supervisor(pipeline: Pipeline, monkeypatch):
    """This process has the settings of the pipeline."""
    for name, value in pipeline.environment.items():
        if name.startswith("SLUICE_"):
            monkeypatch.setenv(name, value)
    settings.cache_clear()
    yield
    monkeypatch.undo()
    settings.cache_clear()


@only_in_full_runs
@pytest.mark.parametrize("pipeline", [{"SLUICE_EXECUTORS": "main=1-3"}], indirect=True, ids=["1-3"])
@pytest.mark.usefixtures("as_supervisor")
def test_a_driver_gets_more_executors_when_it_is_busy_and_fewer_when_it_is_not(pipeline: Pipeline):
    defaults = Path(pipeline.environment["SPARK_CONF_DIR"]) / "spark-defaults.conf"
    cluster = [
        "spark.master local-cluster[3,1,512]",
        "spark.executor.memory 512m",
        f"spark.executor.extraClassPath {settings().spark_class_path}",
        "",
    ]
    defaults.write_text("\n".join([defaults.read_text(), *cluster]))
    executors.scale_all(pipeline.control, catalog.load())
    pipeline.produce_next()
    driver = pipeline.submit("--driver", "main").pid

    def wait(condition) -> None:
        wait_until(condition, WAIT_SECONDS, lambda: pipeline.log.read_text()[-3_000:])

    wait(lambda: set(pipeline.holders()) >= set(TABLES))
    wait(lambda: executor_count(driver) == 1)
    pipeline.wait_until_gold_is_right(WAIT_SECONDS)

    assert decide(pipeline, BUSY) is Reason.MORE_SEEN_ONCE
    assert decide(pipeline, BUSY) is Reason.MORE
    pipeline.produce_next()
    wait(lambda: executor_count(driver) == 3)
    wait(lambda: sizing.sizes(pipeline.control)["main"].running == 3)
    pipeline.produce_next()
    pipeline.wait_until_gold_is_right(WAIT_SECONDS)

    while decide(pipeline, IDLE) is not Reason.LESS:
        assert sizing.sizes(pipeline.control)["main"].size == 3
    pipeline.produce_next()
    wait(lambda: executor_count(driver) == 1)
    wait(lambda: sizing.sizes(pipeline.control)["main"].running == 1)
    pipeline.produce_next()
    pipeline.wait_until_gold_is_right(WAIT_SECONDS)
    pipeline.assert_nothing_lost_or_doubled()

    flows = [flow for flow in catalog.load().drivers()["main"] if flow.flow in TABLES]
    (bronze,) = [measured for measured in load.measure(flows) if measured.flow == "bronze.tracker_events"]
    assert bronze.parallelism == 3
    assert {1, 3} <= {batch.executors for batch in bronze.batches}
