"""The watchdog raises an alarm when the supervisor does not work, even without a running Airflow."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from sqlalchemy import Engine, select, update

from include.airflow.supervisor import watchdog
from include.airflow.supervisor.watchdog import DriverWatch, Watchdog
from include.control.flows import orders
from include.control.flows.incidents import Incident
from include.control.leases.process import Process
from include.control.store import database
from include.control.store.schema import drivers, incidents, pulses
from include.control.supervision import shutdown, supervision, supervisor_presence
from include.settings import settings
from tests.support.waiting import wait_until

COMMAND = [sys.executable, "-m", "include.airflow.supervisor.watchdog"]


@pytest.fixture
def url(tmp_path: Path, monkeypatch) -> Iterator[str]:
    """A control database for one test and its subprocesses."""
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("SLUICE_CONTROL_URL", f"sqlite:///{tmp_path / 'data' / 'control.db'}")
    settings.cache_clear()
    yield settings().control_url
    monkeypatch.undo()
    settings.cache_clear()


@pytest.fixture
def engine(url: str) -> Engine:
    return database.connect(url)


@pytest.fixture
def start(tmp_path: Path, airflow_database) -> Iterator[Callable[..., subprocess.Popen]]:
    """Start a watchdog with short timeouts. Its output goes to `watchdog.log`."""
    processes: list[subprocess.Popen] = []

    def start_watchdog(late: str = "3") -> subprocess.Popen:
        with (tmp_path / "watchdog.log").open("ab") as log:
            command = [*COMMAND, "--every", "0.5", "--late", late]
            processes.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
        return processes[-1]

    yield start_watchdog
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def paused(airflow_database) -> Iterator[None]:
    pause(True)
    yield
    pause(False)


def pause(is_paused: bool) -> None:
    """Do what `airflow dags pause supervise` does, without a start of Airflow's command line."""
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    with create_session() as session:
        result = session.execute(update(DagModel).where(DagModel.dag_id == "supervise").values(is_paused=is_paused))
    assert result.rowcount == 1


def test_what_the_receiver_refuses_is_all_that_is_sent_again(monkeypatch):
    accepted_incident, refused_incident = (
        Incident(0, "control database", "AWAY", "why"),
        Incident(0, "supervise", "LATE", "why"),
    )
    attempts: list[Incident] = []

    def notify(option: str, news: list[Incident]) -> bool:
        attempts.extend(news)
        return refused_incident not in news

    monkeypatch.setattr(watchdog, "_notify", notify)
    instance = Watchdog(
        late_seconds=60, again_seconds=0, well_at=0, answered_at=0, news=[refused_incident, accepted_incident]
    )
    instance._tell()
    instance._tell()
    assert attempts == [refused_incident, accepted_incident, refused_incident]


def store_heartbeat(engine: Engine, seconds_ago: float) -> None:
    """Store a heartbeat of the supervisor from so many seconds ago."""
    supervision.heartbeat(engine)
    with database.transaction(engine) as connection:
        connection.execute(pulses.update().values(at=pulses.c.at - seconds_ago))


def stored_incidents(engine: Engine) -> list:
    with database.transaction(engine) as connection:
        return list(connection.execute(select(incidents)).all())


def test_a_paused_supervisor_is_one_message_and_its_return_another(engine, paused, start, receiver, tmp_path: Path):
    watchdog = start()
    log = (tmp_path / "watchdog.log").read_text
    wait_until(lambda: receiver.messages, 60, log)
    (message,) = receiver.messages
    assert (message["target"], message["state"]) == ("supervise", "PAUSED")
    assert "the DAG 'supervise' is paused; Airflow's API server does not answer at http" in message["reason"]
    assert message["command"] == "airflow dags unpause supervise"
    assert message["runbook"] == "docs/runbooks/supervisor.md"

    def is_over() -> bool:
        supervision.heartbeat(engine)
        return len(receiver.messages) > 1

    wait_until(is_over, 60, log)
    assert [notice["is_over"] for notice in receiver.messages] == [False, True]
    assert [row.ended_at is not None for row in stored_incidents(engine)] == [True]
    watchdog.send_signal(signal.SIGTERM)
    assert watchdog.wait(10) == -signal.SIGTERM


def test_a_control_database_that_is_away_is_told_too_and_so_is_its_return(url, start, receiver, tmp_path: Path):
    data = Path(url.removeprefix("sqlite:///")).parent
    data.rmdir()
    start(late="1")
    log = (tmp_path / "watchdog.log").read_text
    wait_until(lambda: receiver.messages, 60, log)
    (message,) = receiver.messages
    assert (message["target"], message["state"]) == ("control database", "AWAY")
    assert "no stream may write" in message["reason"]
    data.mkdir()
    wait_until(lambda: len(receiver.messages) > 1, 60, log)
    assert receiver.messages[1]["is_over"] is True
    assert receiver.messages[1]["target"] == "control database"


def test_a_receiver_that_is_away_gets_it_later(engine, start, receiver, tmp_path: Path):
    receiver.stop()
    start()
    log = tmp_path / "watchdog.log"
    wait_until(lambda: "did not take the message" in log.read_text(), 60, log.read_text)
    receiver.start()
    wait_until(lambda: receiver.messages, 60, log.read_text)
    assert receiver.messages[0]["state"] == "DEAD"
    assert receiver.messages[0]["command"] == "sluice up"


def test_for_cron_it_looks_once_and_its_exit_code_says_what_it_saw(engine, airflow_database, receiver):
    store_heartbeat(engine, 100)
    assert subprocess.run([*COMMAND, "--once"]).returncode == 0
    assert (stored_incidents(engine), receiver.messages) == ([], [])
    store_heartbeat(engine, 200)
    for _ in range(2):
        assert subprocess.run([*COMMAND, "--once"]).returncode == 1
    assert len(stored_incidents(engine)) == len(receiver.messages) == 1
    store_heartbeat(engine, 0)
    assert subprocess.run([*COMMAND, "--once"]).returncode == 0
    assert [message["is_over"] for message in receiver.messages] == [False, True]


def test_a_probe_sees_by_a_file_that_the_watchdog_looks_and_that_it_hangs(engine, tmp_path: Path):
    alive = tmp_path / "alive"
    watchdog = subprocess.Popen([*COMMAND, "--every", "0.1", "--alive", str(alive)], stderr=subprocess.DEVNULL)
    try:
        wait_until(alive.exists, 60)
        watchdog.send_signal(signal.SIGSTOP)
        wait_until(lambda: psutil.Process(watchdog.pid).status() == psutil.STATUS_STOPPED, 10)
        touched_at = alive.stat().st_mtime_ns
        watchdog.send_signal(signal.SIGCONT)
        wait_until(lambda: alive.stat().st_mtime_ns > touched_at, 60)
    finally:
        watchdog.kill()
        watchdog.wait()


def test_neither_a_fresh_start_nor_a_sleeping_machine_is_held_against_the_supervisor(engine):
    store_heartbeat(engine, 10_000)
    watchdog = Watchdog(180, 60, time.monotonic(), time.monotonic())
    assert watchdog.look()
    watchdog.well_at -= 170
    assert watchdog.look()
    assert stored_incidents(engine) == []


def test_neither_a_platform_that_starts_nor_one_that_was_stopped_on_purpose_is_an_alarm(engine):
    store_heartbeat(engine, 10_000)
    watchdog = Watchdog(180, 60, time.monotonic() - 10_000, time.monotonic())
    shutdown.begin(engine, {1})
    assert watchdog.look()
    shutdown.end(engine)
    watchdog.well_at -= 10_000
    supervision.heartbeat(engine, supervisor_presence.STARTER)
    assert supervisor_presence.read(engine).is_starting
    assert watchdog.look()
    assert stored_incidents(engine) == []


@pytest.fixture
def driver_process(engine) -> Iterator[subprocess.Popen]:
    """A process that counts as the driver `main`."""
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    with database.transaction(engine) as connection:
        orders.lock_driver(connection, "main")
        connection.execute(update(drivers).values(handle=Process.of(process.pid).to_json()))
    yield process
    process.kill()
    process.wait()


def runs_of_the_supervisor() -> int:
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    with create_session() as session:
        return session.query(DagRun).where(DagRun.dag_id == "supervise").count()


def test_a_driver_that_ends_starts_one_run_of_the_supervisor(engine, airflow_database, driver_process):
    driver_watch, runs_before = DriverWatch(), runs_of_the_supervisor()
    driver_watch.look()
    assert driver_watch.child is None
    driver_process.kill()
    driver_process.wait()
    driver_watch.look()
    assert driver_watch.child.wait(300) == 0
    assert runs_of_the_supervisor() == runs_before + 1
    driver_watch.child = None
    driver_watch.look()
    assert driver_watch.child is None


def test_a_driver_that_ends_because_the_platform_is_stopped_starts_nothing(engine, driver_process):
    driver_watch = DriverWatch()
    driver_watch.look()
    shutdown.begin(engine, {1})
    driver_process.kill()
    driver_process.wait()
    driver_watch.look()
    assert driver_watch.child is None


def test_without_anything_to_say_it_needs_no_airflow(engine):
    code = "import sys, include.airflow.supervisor.watchdog; print('airflow' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "False"
