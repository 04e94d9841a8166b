"""The supervisor starts what is missing, once, and lets it live."""

import os
import signal

import psutil
import pytest

from include.control import database, lease
from include.control.process import Holder
from include.ledger import status
from include.local.broker import create_topic
from include.orchestration import launch
from include.settings import settings
from tests.pipeline import TOPIC, wait_until

FLOWS = {"bronze.tracker_events", "silver.tracker_readings", "gold.heart_rate_by_model"}


def holders() -> dict[str, Holder]:
    with database.transaction(database.connect(settings().control_url)) as connection:
        return lease.holders(connection)


def drivers() -> list[int]:
    """The pids of the JVMs that host the supervised flows."""
    found = []
    for process in psutil.process_iter(["cmdline", "name"]):
        command = process.info["cmdline"] or []
        is_driver = process.info["name"] == "java" and "--driver" in command
        if is_driver and process.environ().get("SLUICE_HOME") == str(settings().home):
            found.append(process.pid)
    return found


@pytest.fixture
def supervise(dags, broker):
    create_topic(broker, TOPIC, 3)
    yield dags["supervise"]
    for pid in drivers():
        os.kill(pid, signal.SIGKILL)


def test_supervise_starts_by_itself_every_minute(dags):
    supervise = dags["supervise"]
    assert supervise.schedule == "* * * * *"
    assert supervise.is_paused_upon_creation is False
    assert (supervise.catchup, supervise.max_active_runs) == (False, 1)


def test_the_driver_it_launches_outlives_the_task_and_is_launched_once(supervise):
    assert supervise.test().state == "success"
    assert len(drivers()) == 1
    assert supervise.test().state == "success"
    assert len(drivers()) == 1, "a driver that is still starting was started again"
    wait_until(lambda: set(holders()) >= FLOWS, 120, launch.log("main").read_text)
    wait_until(lambda: status.rows("gold.heart_rate_by_model") is not None, 120, launch.log("main").read_text)
    assert {holder.jvm.pid for flow, holder in holders().items() if flow in FLOWS} == set(drivers())
    (first,) = drivers()
    assert os.getsid(first) != os.getsid(0), "it would be signalled with the task"
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not drivers(), 30)
    assert supervise.test().state == "success"
    assert len(drivers()) == 1
    assert drivers() != [first]


def test_a_missing_spark_connection_fails_the_run_instead_of_going_to_yarn(supervise, monkeypatch, capfd):
    from include.errors import UsageError

    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    with pytest.raises(UsageError, match="airflow connections add spark_default --conn-type spark"):
        launch.detached("main")
    assert drivers() == []
