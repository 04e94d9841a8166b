"""The processes of `make up`: what died is noticed, and what it left behind is ended."""

import subprocess
from pathlib import Path

import psutil
import pytest

from include import catalog
from include.catalog import Catalog
from include.control.process import Process
from include.control.supervision import supervision
from include.local import streams
from include.local.processes import Platform
from include.spec import Kafka, Table
from tests.support.waiting import wait_until

# It has a child.
COMMAND = ["sh", "-c", "sleep 600; true"]
DRIVER, FLOW = "main", "bronze.orders"


@pytest.fixture
def platform(tmp_path: Path):
    made = Platform(tmp_path)
    yield made
    made.stop(0)


def test_what_a_dead_process_left_behind_is_ended_and_what_lives_stays(platform: Platform):
    dead, alive = (platform.start(name, COMMAND, {"PATH": "/usr/bin:/bin"}) for name in ("dead", "alive"))
    wait_until(lambda: len(platform.processes()) == 4, 30)
    dead.kill()
    # Any new process of this one's has it reaped.
    subprocess.run(["true"], check=True)
    assert not psutil.pid_exists(dead.pid)
    platform.forget()
    assert platform.names() == ["alive"]
    leader = psutil.Process(alive.pid)
    assert set(platform.processes()) == {leader, *leader.children()}


def test_a_driver_that_dies_without_a_word_is_noticed_unless_it_was_launched_before(engine, sleeper, monkeypatch):
    declared = Catalog({FLOW: Table(name=FLOW, comment="", source=Kafka("orders"))})
    monkeypatch.setattr(catalog, "load", lambda: declared)
    assert streams.ended_drivers(engine, streams.launched(engine)) == []
    driver = sleeper()
    handle = Process.of(driver.pid).to_json()
    since = supervision.settle(engine, DRIVER, [FLOW]).launch_since
    supervision.record_launch(engine, DRIVER, handle, since)
    assert streams.ended_drivers(engine, {}) == []
    driver.kill()
    driver.wait()
    assert streams.ended_drivers(engine, {}) == [DRIVER]
    assert streams.ended_drivers(engine, {DRIVER: handle}) == []
