"""Processes are told apart although numbers are used again, and fencing ends them."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from include.control.leases.process import Holder, Process
from tests.conftest import ROOT
from tests.support.waiting import wait_until


def status(pid: int) -> str:
    return psutil.Process(pid).status()


def test_a_running_process_is_alive_and_an_ended_one_is_not(sleeper):
    child = sleeper()
    process = Process.of(child.pid)
    assert process.is_alive
    child.kill()
    child.wait()
    assert not process.is_alive


def test_a_stopped_process_is_alive(sleeper):
    child = sleeper()
    os.kill(child.pid, signal.SIGSTOP)
    wait_until(lambda: status(child.pid) == psutil.STATUS_STOPPED, 10)
    assert Process.of(child.pid).is_alive


def test_a_zombie_is_dead(sleeper):
    child = sleeper()
    process = Process.of(child.pid)
    os.kill(child.pid, signal.SIGKILL)
    wait_until(lambda: status(child.pid) == psutil.STATUS_ZOMBIE, 10)
    assert not process.is_alive


def test_a_process_that_got_the_number_of_another_is_not_that_other_one(sleeper):
    child = sleeper()
    earlier_process = replace(Process.of(child.pid), started_at=Process.of(child.pid).started_at - 5)
    assert not earlier_process.is_alive
    earlier_process.kill()
    assert child.poll() is None
    assert Process.of(child.pid).is_alive


def test_killing_ends_a_stopped_process_too_and_returns_when_it_is_gone(sleeper):
    child = sleeper()
    process = Process.of(child.pid)
    os.kill(child.pid, signal.SIGSTOP)
    wait_until(lambda: status(child.pid) == psutil.STATUS_STOPPED, 10)
    process.kill()
    assert not process.is_alive
    assert child.wait() == -signal.SIGKILL


def test_killing_a_dead_process_is_harmless(sleeper):
    child = sleeper()
    process = Process.of(child.pid)
    process.kill()
    child.wait()
    process.kill()
    assert not process.is_alive


def test_a_process_is_the_same_after_it_was_written_down(sleeper):
    process = Process.of(sleeper().pid)
    assert Process.from_json(process.to_json()) == process
    assert Process.from_json(process.to_json()).is_alive


def test_a_process_of_another_boot_or_machine_is_not_here(sleeper):
    process = Process.of(sleeper().pid)
    assert process.is_here
    assert not replace(process, boot="another").is_here


def test_a_holder_is_the_same_after_it_was_written_down(holder):
    driver = holder()
    assert Holder.from_json(driver.to_json()) == driver
    assert str(driver) == f"driver 'other' on here (pid {driver.python.pid}, JVM {driver.jvm.pid})"


@pytest.mark.parametrize("half", ["python", "jvm"])
def test_a_holder_is_known_dead_when_one_half_of_it_is(holder, half: str):
    driver = holder()
    assert not driver.is_known_dead
    getattr(driver, half).kill()
    assert driver.is_known_dead


def test_nobody_knows_whether_a_holder_elsewhere_is_dead(holder):
    driver = holder()
    driver.fence()
    assert driver.is_known_dead
    remote_driver = replace(
        driver, python=replace(driver.python, boot="another"), jvm=replace(driver.jvm, boot="another")
    )
    assert not remote_driver.is_known_dead


def test_fencing_ends_both_halves_and_touches_nothing_elsewhere(holder):
    driver = holder()
    replace(driver, python=replace(driver.python, boot="another"), jvm=replace(driver.jvm, boot="another")).fence()
    assert driver.python.is_alive
    assert driver.jvm.is_alive
    driver.fence()
    assert not driver.python.is_alive
    assert not driver.jvm.is_alive


# /proc after the system clock was set forward by two seconds: another `btime`, and the same ticks.
AFTER_A_CLOCK_STEP = """
import pathlib, re, sys
import psutil
from include.control.leases.process import Process

process = Process.from_json(sys.argv[2])
proc = pathlib.Path(sys.argv[1])
stat = pathlib.Path("/proc/stat").read_text()
(proc / "stat").write_text(re.sub(r"btime (\\d+)", lambda found: f"btime {int(found[1]) + 2}", stat))
(proc / str(process.pid)).symlink_to(f"/proc/{process.pid}")
psutil.PROCFS_PATH = str(proc)
print(process.is_alive)
"""


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="reads /proc")
def test_a_process_is_still_alive_after_the_system_clock_was_set(tmp_path: Path, sleeper):
    process = Process.of(sleeper().pid)
    result = subprocess.run(
        [sys.executable, "-c", AFTER_A_CLOCK_STEP, str(tmp_path), process.to_json()],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "True"
