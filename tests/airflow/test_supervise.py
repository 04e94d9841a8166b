"""The supervisor starts a missing driver once, and does not disturb it afterwards."""

import os
import signal

import psutil
import pytest
from sqlalchemy import select

from include import catalog
from include.airflow.launchers import submit
from include.airflow.supervisor import reconcile
from include.control import commands
from include.control.commands import Action, Command
from include.control.flows import orders
from include.control.flows.observed_flow import Failure
from include.control.leases import lease
from include.control.leases.process import Holder
from include.control.store import database
from include.control.store.schema import runs
from include.local.broker import create_topic
from include.monitoring import query_progress
from include.settings import settings
from tests.support.jobs.process import SHORT_LIVED
from tests.support.pipeline import TOPIC
from tests.support.waiting import wait_until

FLOWS = {"bronze.tracker_events", "silver.tracker_readings", "gold.heart_rate_by_model"}


def holders() -> dict[str, Holder]:
    with database.transaction(database.connect(settings().control_url)) as connection:
        return lease.holders(connection)


def drivers() -> list[int]:
    """The pids of the supervised drivers. Each driver leads its own session."""
    pids = []
    for process in psutil.process_iter(["cmdline"]):
        is_leader = "--driver" in (process.info["cmdline"] or []) and os.getsid(process.pid) == process.pid
        if is_leader and process.environ().get("SLUICE_HOME") == str(settings().home):
            pids.append(process.pid)
    return pids


def silent_flows() -> set[str]:
    """The flows without a sign of life."""
    with database.transaction(database.connect(settings().control_url)) as connection:
        return set(connection.execute(select(runs.c.flow).where(runs.c.sign_at.is_(None))).scalars()) & FLOWS


def start_times() -> set[float]:
    """The times at which the driver began to start the flows."""
    with database.transaction(database.connect(settings().control_url)) as connection:
        return set(connection.execute(select(runs.c.intended_at).where(runs.c.flow.in_(FLOWS))).scalars())


def backdate_starts() -> None:
    """Move the start of every flow back by an hour."""
    with database.transaction(database.connect(settings().control_url)) as connection:
        connection.execute(runs.update().values(intended_at=runs.c.intended_at - 3_600))


@pytest.fixture
def supervise(dags, broker, monkeypatch):
    for name, value in SHORT_LIVED.items():
        monkeypatch.setenv(name, value)
    create_topic(broker, TOPIC, 3)
    engine, other_flows = database.connect(settings().control_url), tuple(catalog.load().flows.keys() - FLOWS)
    commands.execute(engine, Command(Action.STOP, other_flows, "a test", "one driver is enough here"))
    yield dags["supervise"]
    commands.execute(engine, Command(Action.START, other_flows, "a test", "it is over"))
    for pid in drivers():
        os.kill(pid, signal.SIGKILL)


def test_supervise_starts_by_itself_every_minute(dags):
    supervise = dags["supervise"]
    assert supervise.schedule == "* * * * *"
    assert supervise.is_paused_upon_creation is False
    assert (supervise.catchup, supervise.max_active_runs) == (False, 1)


def test_query_progress_that_cannot_be_gathered_alarms_nobody(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    settings.cache_clear()
    try:
        settings().journals.write_text("in the way")
        reconcile._gather()
        settings().journals.unlink()
        reconcile._gather()
    finally:
        settings.cache_clear()
    lines = caplog.messages
    assert lines[0].startswith(f"query progress is not gathered for now: {query_progress.TABLE}: gathering broke off")
    assert lines[1] == "query progress: 0 reports gathered"


def test_the_driver_it_launches_outlives_the_task_and_is_launched_once(supervise):
    assert supervise.test().state == "success"
    assert len(drivers()) == 1
    assert supervise.test().state == "success"
    assert len(drivers()) == 1, "a driver that is still starting was started again"
    wait_until(lambda: set(holders()) >= FLOWS, 120, submit.log("main").read_text)
    wait_until(lambda: not silent_flows(), 120, submit.log("main").read_text)
    assert {holder.jvm.pid for flow, holder in holders().items() if flow in FLOWS} == set(drivers())
    assert len(start_times()) == len(FLOWS), (
        "whoever looks cannot tell a flow that waits for its turn from one that hangs"
    )
    backdate_starts()
    assert supervise.test().state == "success"
    (first_pid,) = drivers()
    os.kill(first_pid, signal.SIGKILL)
    wait_until(lambda: not drivers(), 30)
    # The run fails once, so that the end of a driver is noticed.
    assert supervise.test().state == "failed"
    assert len(drivers()) == 1
    assert drivers() != [first_pid]


def test_a_sick_flow_is_one_red_task_with_its_name_and_the_reason(supervise):
    engine, sick_flow = database.connect(settings().control_url), "silver.tracker_readings"
    other_flows = tuple(FLOWS - {sick_flow})
    commands.execute(engine, Command(Action.STOP, other_flows, "a test", "only one is to be unhealthy"))
    orders.fail(
        engine, [sick_flow], Failure(f"{sick_flow}: its checkpoint is gone", "CHECKPOINT_LOST", needs_person=True)
    )
    try:
        run = supervise.test()
    finally:
        commands.execute(engine, Command(Action.START, tuple(FLOWS), "a test", "it is over"))
    assert run.state == "failed"
    failed_tasks = {task.rendered_map_index for task in run.get_task_instances() if task.state == "failed"}
    assert failed_tasks == {sick_flow}
    assert drivers() == []


def test_a_driver_whose_executors_are_declared_is_told_how_many_it_is_to_have(supervise, monkeypatch):
    engine = database.connect(settings().control_url)
    commands.execute(engine, Command(Action.STOP, tuple(FLOWS), "a test", "no driver is needed"))
    monkeypatch.setenv("SLUICE_EXECUTORS", "main=2-4")
    settings.cache_clear()
    try:
        supervise.test()
        assert orders.read(engine, "main", []).executors == 2
    finally:
        monkeypatch.delenv("SLUICE_EXECUTORS")
        settings.cache_clear()
        commands.execute(engine, Command(Action.START, tuple(FLOWS), "a test", "it is over"))
    assert drivers() == []
