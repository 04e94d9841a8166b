"""The supervisor decides about the executors of declared drivers that run, and of no others."""

import pytest
from sqlalchemy import Engine

from include.airflow.supervisor import executors
from include.catalog import Catalog
from include.control.flows import orders, sizing
from include.control.flows.scale import Reason
from include.control.leases import lease
from include.control.store import database
from include.lake import locations
from include.monitoring import query_progress
from include.settings import settings
from include.spec import Delta, Flow, Kafka

BRONZE = Flow(name="bronze.events", source=Kafka("events"), comment="")
SILVER = Flow(name="silver.readings", source=Delta("bronze.events"), comment="", driver="other")
TABLES = Catalog({table.name: table for table in (BRONZE, SILVER)})


@pytest.fixture
def control(home, own_settings, silent_port) -> Engine:
    own_settings(SLUICE_KAFKA=f"127.0.0.1:{silent_port}", SLUICE_CONTROL_URL=f"sqlite:///{home / 'control.db'}")
    return database.connect(settings().control_url)


def sizes(engine: Engine) -> dict[str, int]:
    return {driver: size.size for driver, size in sizing.sizes(engine).items()}


def test_a_platform_that_declares_no_executors_decides_nothing(control: Engine, holder):
    lease.acquire(control, [BRONZE.flow], holder(), 60)
    executors.scale_all(control, TABLES)
    assert (sizes(control), sizing.decisions(control, None, 10)) == ({}, [])


def test_a_driver_has_its_fewest_before_it_starts_and_a_decision_once_it_runs(control: Engine, holder, own_settings):
    own_settings(SLUICE_EXECUTORS="main=2-4")
    executors.scale_all(control, TABLES)
    assert orders.read(control, "main", []).executors == 2
    assert sizing.decisions(control, None, 10) == []
    lease.acquire(control, [BRONZE.flow, SILVER.flow], holder(), 60)
    executors.scale_all(control, TABLES)
    (decision,) = sizing.decisions(control, None, 10)
    # No broker answers.
    assert (decision.driver, decision.size, decision.reason) == ("main", 2, Reason.UNKNOWN)
    assert [load.flow for load in decision.inputs.loads] == [BRONZE.flow]


def test_a_driver_that_no_flow_has_is_named(control: Engine, own_settings, caplog):
    own_settings(SLUICE_EXECUTORS="mian=1-3")
    executors.scale_all(control, TABLES)
    assert "SLUICE_EXECUTORS names the driver 'mian', which no flow has" in caplog.text


def test_a_driver_that_cannot_be_judged_keeps_its_size_and_the_others_get_theirs(
    control: Engine, holder, own_settings, caplog
):
    own_settings(SLUICE_EXECUTORS="main=2-4 other=3-5")
    lease.acquire(control, [BRONZE.flow, SILVER.flow], holder(), 60)
    # The table of the progress is damaged, which both of them read.
    (locations.table_path(query_progress.TABLE) / "_delta_log").mkdir(parents=True)
    (locations.table_path(query_progress.TABLE) / "_delta_log" / f"{0:020}.json").write_text("no JSON")
    executors.scale_all(control, TABLES)
    assert sizes(control) == {"main": 2, "other": 3}
    assert caplog.text.count("stay as they are") == 2
