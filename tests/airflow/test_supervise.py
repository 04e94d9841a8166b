"""The supervisor starts what is missing, once, and lets it live."""

import os
import signal
import subprocess

import psutil
import pytest

from include.control import database, lease, supervision
from include.control.process import Holder, Process
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
    """The pids of the supervised drivers: each leads a session of its own, from its launcher's shell on."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        is_leader = "--driver" in (process.info["cmdline"] or []) and os.getsid(process.pid) == process.pid
        if is_leader and process.environ().get("SLUICE_HOME") == str(settings().home):
            found.append(process.pid)
    return found


def let_it_last() -> None:
    """As if every driver had been launched an hour ago."""
    with database.transaction(database.connect(settings().control_url)) as connection:
        earlier = database.launches.c.intended_at - 3_600
        connection.execute(database.launches.update().values(intended_at=earlier))


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
    let_it_last()
    assert supervise.test().state == "success"
    (first,) = drivers()
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


def test_a_sick_flow_is_one_red_task_with_its_name_and_the_reason(supervise):
    engine = database.connect(settings().control_url)
    with database.transaction(engine) as connection:
        connection.execute(database.leases.delete())
        connection.execute(database.launches.delete())
    supervision.settle(engine, "main", sorted(FLOWS))
    gone = subprocess.Popen(["true"])
    process = Process.of(gone.pid)
    gone.wait()
    supervision.record_launch(engine, "main", process)
    supervision.record_failure(engine, "main", "silver.tracker_readings: the disk is full")
    run = supervise.test()
    assert run.state == "failed"
    red = {task.rendered_map_index for task in run.get_task_instances() if task.state == "failed"}
    assert red == FLOWS
    assert drivers() == []
