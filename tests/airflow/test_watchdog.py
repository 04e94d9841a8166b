"""Somebody notices when the supervisor itself is not at work, and Airflow need not run for that."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, select, update

from include.control.incidents import Incident
from include.control.store import database
from include.control.store.schema import incidents, pulses
from include.control.supervision import shutdown, supervision, supervisor_presence
from include.orchestration import watchdog
from include.orchestration.watchdog import Watchdog
from include.settings import settings
from tests.support.waiting import wait_until

COMMAND = [sys.executable, "-m", "include.orchestration.watchdog"]


@pytest.fixture
def url(tmp_path: Path, monkeypatch) -> Iterator[str]:
    """A control database of the test's own, also for what it starts."""
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
    """Starts a watchdog that is impatient; its output goes to `watchdog.log`."""
    started: list[subprocess.Popen] = []

    def begin(late: str = "3") -> subprocess.Popen:
        with (tmp_path / "watchdog.log").open("ab") as log:
            command = [*COMMAND, "--every", "0.5", "--late", late]
            started.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def paused(airflow_database) -> Iterator[None]:
    pause(True)
    yield
    pause(False)


def pause(is_paused: bool) -> None:
    """What `airflow dags pause supervise` does, without a start of Airflow's command line."""
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    with create_session() as session:
        done = session.execute(update(DagModel).where(DagModel.dag_id == "supervise").values(is_paused=is_paused))
    assert done.rowcount == 1


def test_what_the_receiver_refuses_is_all_that_is_sent_again(monkeypatch):
    taken, refused = Incident(0, "control database", "AWAY", "why"), Incident(0, "supervise", "LATE", "why")
    sent: list[Incident] = []

    def notify(option: str, news: list[Incident]) -> bool:
        sent.extend(news)
        return refused not in news

    monkeypatch.setattr(watchdog, "_notify", notify)
    impatient = Watchdog(late_seconds=60, again_seconds=0, well_at=0, answered_at=0, news=[refused, taken])
    impatient._tell()
    impatient._tell()
    assert sent == [refused, taken, refused]


def work_last(engine: Engine, seconds_ago: float) -> None:
    """As if the supervisor had been at work so long ago."""
    supervision.heartbeat(engine)
    with database.transaction(engine) as connection:
        connection.execute(pulses.update().values(at=pulses.c.at - seconds_ago))


def stored(engine: Engine) -> list:
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
    assert [one["is_over"] for one in receiver.messages] == [False, True]
    assert [row.ended_at is not None for row in stored(engine)] == [True]
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
    assert receiver.messages[0]["command"] == "make up"


def test_for_cron_it_looks_once_and_its_exit_code_says_what_it_saw(engine, airflow_database, receiver):
    work_last(engine, 100)
    assert subprocess.run([*COMMAND, "--once"]).returncode == 0
    assert (stored(engine), receiver.messages) == ([], [])
    work_last(engine, 200)
    for _ in range(2):
        assert subprocess.run([*COMMAND, "--once"]).returncode == 1
    assert len(stored(engine)) == len(receiver.messages) == 1
    work_last(engine, 0)
    assert subprocess.run([*COMMAND, "--once"]).returncode == 0
    assert [message["is_over"] for message in receiver.messages] == [False, True]


def test_neither_a_fresh_start_nor_a_sleeping_machine_is_held_against_the_supervisor(engine):
    work_last(engine, 10_000)
    watchdog = Watchdog(180, 60, time.monotonic(), time.monotonic())
    assert watchdog.look()
    watchdog.well_at -= 170
    assert watchdog.look()
    assert stored(engine) == []


def test_neither_a_platform_that_starts_nor_one_that_was_stopped_on_purpose_is_an_alarm(engine):
    work_last(engine, 10_000)
    watchdog = Watchdog(180, 60, time.monotonic() - 10_000, time.monotonic())
    shutdown.begin(engine, {1})
    assert watchdog.look()
    shutdown.end(engine)
    watchdog.well_at -= 10_000
    supervision.heartbeat(engine, supervisor_presence.STARTER)
    assert supervisor_presence.read(engine).is_starting
    assert watchdog.look()
    assert stored(engine) == []


def test_without_anything_to_say_it_needs_no_airflow(engine):
    known = "import sys, include.orchestration.watchdog; print('airflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", known], capture_output=True, text=True)
    assert done.stdout.strip() == "False"
