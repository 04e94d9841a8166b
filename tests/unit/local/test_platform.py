"""The processes of `make up`: a dead process is noticed, and its children are killed."""

import subprocess
from pathlib import Path

import psutil
import pytest

from include import catalog
from include.catalog import Catalog
from include.control.leases.process import Process
from include.control.supervision import supervision
from include.errors import SetupError
from include.local import up
from include.local.airflow import Airflow
from include.local.broker import Broker
from include.local.processes import LONGEST_STANDSTILLS, Platform, StallTimer
from include.settings import from_environment
from include.spec import Kafka, Table
from tests.support.waiting import wait_until

# The shell starts a child process.
COMMAND = ["sh", "-c", "sleep 600; true"]
DRIVER, FLOW = "main", "bronze.orders"


@pytest.fixture
def platform(tmp_path: Path):
    instance = Platform(tmp_path)
    yield instance
    instance.stop(0)


def test_what_a_dead_process_left_behind_is_ended_and_what_lives_stays(platform: Platform):
    dead_process, live_process = (
        platform.start(name, COMMAND, {"PATH": "/usr/bin:/bin"}) for name in ("dead", "alive")
    )
    wait_until(lambda: len(platform.processes()) == 4, 30)
    dead_process.kill()
    # The next child process makes `subprocess` reap the dead one.
    subprocess.run(["true"], check=True)
    assert not psutil.pid_exists(dead_process.pid)
    platform.forget()
    assert platform.names() == ["alive"]
    leader = psutil.Process(live_process.pid)
    assert set(platform.processes()) == {leader, *leader.children()}


def test_a_driver_that_dies_without_a_word_is_noticed_unless_it_was_launched_before(engine, sleeper, monkeypatch):
    tables = Catalog({FLOW: Table(name=FLOW, comment="", source=Kafka("orders"))})
    monkeypatch.setattr(catalog, "load", lambda: tables)
    assert up.ended_drivers(engine, up.launched(engine)) == []
    driver = sleeper()
    handle = Process.of(driver.pid).to_json()
    launch_since = supervision.settle(engine, DRIVER, [FLOW]).launch_since
    supervision.record_launch(engine, DRIVER, handle, launch_since)
    assert up.ended_drivers(engine, {}) == []
    driver.kill()
    driver.wait()
    assert up.ended_drivers(engine, {}) == [DRIVER]
    assert up.ended_drivers(engine, {DRIVER: handle}) == []


def test_a_wait_goes_on_while_something_moves_and_ends_after_a_standstill(platform: Platform):
    now = [0.0]
    log = platform.log("driver-main")
    timer = StallTimer(300, lambda: platform.logged_bytes("driver-main"), clock=lambda: now[0])
    log.parent.mkdir(parents=True)
    for step in range(1, 7):
        now[0] = 250.0 * step
        log.write_text("x" * step)
        assert not timer.is_over
    now[0] = 300.0 * LONGEST_STANDSTILLS + 1
    log.write_text("and it still moves")
    assert timer.is_over


def test_a_wait_without_movement_ends_after_its_seconds(platform: Platform):
    now = [0.0]
    timer = StallTimer(300, lambda: platform.logged_bytes("driver-main"), clock=lambda: now[0])
    now[0] = 300
    assert not timer.is_over
    now[0] = 301
    assert timer.is_over


def test_a_broker_is_waited_for_while_its_start_moves_and_no_longer(tmp_path: Path):
    # Nothing listens at port 1.
    broker = Broker(tmp_path, tmp_path, tmp_path, port=1, controller_port=2)
    polls: list[int] = []
    with pytest.raises(SetupError, match=r"does not answer at 127.0.0.1:1, and its start has not moved for 0 s"):
        broker.wait(0.4, lambda: polls.append(1), lambda: min(len(polls), 10))
    # With a pause of 0.1 s after each, 0.4 s alone are over after the fifth.
    assert len(polls) > 10


def test_a_start_knows_that_an_earlier_build_has_made_the_database_of_airflow(tmp_path: Path, platform: Platform):
    services = Airflow(from_environment({"SLUICE_HOME": str(tmp_path)}), platform, {})
    assert not services.is_outdated, "it has no database"
    (tmp_path / "airflow").mkdir()
    services.end_migration(None, lambda: None)
    assert not services.is_outdated
    (tmp_path / "airflow" / "migrated-lock.sha256").write_text("of an earlier lock")
    assert services.is_outdated
