"""A driver that has lost its lease is ended before its successor starts, because it may hold locks of shared files."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, update

from include.airflow.launchers import submit
from include.airflow.launchers.launch import Processes
from include.airflow.launchers.standalone import ANSWER_SECONDS
from include.airflow.launchers.submit import Local
from include.airflow.supervisor import reconcile
from include.control.flows import orders
from include.control.leases import lease
from include.control.leases.process import Holder, Process
from include.control.store import database
from include.control.store.schema import runs
from include.control.supervision import supervision
from include.spec import Flow, Kafka
from tests.support.waiting import wait_until

ELSEWHERE = Process(7, 1.0, "the boot of another machine")


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return database.connect(f"sqlite:///{tmp_path / 'control.db'}")


@pytest.fixture(autouse=True)
def home(own_settings, tmp_path: Path) -> None:
    own_settings(SLUICE_HOME=tmp_path)


@pytest.fixture
def launches(tmp_path: Path, monkeypatch) -> Path:
    """A file with one line for each launch: whether the process whose id is in the file `predecessor` lived then."""
    script, lines = tmp_path / "spark-submit", tmp_path / "launches"
    alive = f"grep -qs '^State:.[^Z]' /proc/$(cat '{tmp_path}/predecessor')/status"
    script.write_text(f"#!/bin/sh\n{alive} && echo it lived >> '{lines}' || echo it was dead >> '{lines}'\n")
    script.chmod(0o755)
    monkeypatch.setattr(submit, "SPARK_SUBMIT", script)
    return lines


@pytest.fixture
def predecessor(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (tmp_path / "predecessor").write_text(str(process.pid))
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def hanging() -> Iterator[str]:
    """The handle of a driver on a cluster that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield json.dumps({"submission": "driver-1", "rest": f"http://127.0.0.1:{server.getsockname()[1]}"})


def flow(driver: str) -> Flow:
    return Flow(name=f"bronze.{driver}", comment="", source=Kafka("numbers"))


def lose_lease(engine: Engine, driver: str, handle: str) -> None:
    """Launch a driver whose lease expires at once, as that of a frozen one on another machine does in the end."""
    settlement = supervision.settle(engine, driver, [flow(driver).flow])
    assert settlement.launch_since
    supervision.record_launch(engine, driver, handle, settlement.launch_since)
    orders.begin(engine, [flow(driver).flow], False)
    lease.acquire(engine, [lease.driver_lease(driver)], Holder("node-7", driver, ELSEWHERE, ELSEWHERE), 0.001)
    with database.transaction(engine) as connection:
        # Otherwise the second start would wait.
        connection.execute(update(runs).values(intended_at=runs.c.intended_at - 3_600))


def settle(engine: Engine, driver: str, processes: Processes) -> None:
    reconcile._settle(engine, Local("local[*]"), processes, driver, [flow(driver)], {}, reconcile.Seen())


def test_a_driver_that_lost_its_lease_is_dead_before_its_successor_starts(engine: Engine, launches: Path, predecessor):
    lose_lease(engine, "main", Process.of(predecessor.pid).to_json())
    settle(engine, "main", Processes(supervision.handles(engine), Local("")))
    wait_until(launches.exists, 30)
    assert launches.read_text() == "it was dead\n"


def test_a_driver_that_holds_its_lease_is_left_alone(engine: Engine, launches: Path, predecessor):
    lose_lease(engine, "main", Process.of(predecessor.pid).to_json())
    lease.acquire(engine, [lease.driver_lease("main")], Holder("node-7", "main", ELSEWHERE, ELSEWHERE), 60, 0.001)
    settle(engine, "main", Processes(supervision.handles(engine), Local("")))
    assert predecessor.poll() is None
    assert not launches.exists()


def test_a_successor_starts_although_a_lost_node_does_not_confirm_that_the_driver_has_ended(
    engine: Engine, launches: Path, predecessor, hanging: str, caplog
):
    lose_lease(engine, "main", hanging)
    settle(engine, "main", Processes(supervision.handles(engine), Local(""), answer_seconds=0, end_seconds=0.1))
    wait_until(launches.exists, 30)
    assert "driver 'main': its predecessor was ordered to end, and has not confirmed that so far" in caplog.messages


def test_a_lost_node_with_many_drivers_holds_up_their_successors_once(hanging: str):
    names = [f"driver{number}" for number in range(10)]
    processes = Processes(dict.fromkeys(names, hanging), Local(""), end_seconds=1)
    began_at = time.monotonic()
    for name in names:
        processes.end_predecessor(name)
    assert time.monotonic() - began_at < 3 * ANSWER_SECONDS


def test_a_cluster_that_refuses_to_end_a_driver_does_not_keep_its_successor_from_starting(
    engine: Engine, launches: Path, predecessor, caplog
):
    lose_lease(engine, "main", json.dumps({"submission": "driver-1", "rest": "http://127.0.0.1:1"}))
    settle(engine, "main", Processes(supervision.handles(engine), Local("")))
    wait_until(launches.exists, 30)
    [warning] = [line for line in caplog.messages if "predecessor" in line]
    assert warning.startswith("driver 'main': its predecessor may still live: the Spark master's REST API at")
