"""Drivers and components of Airflow are killed on a complete platform, while a producer sends events.

The default is a short form. `make faults` runs the long form.
"""

import os
import random
import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

from include.checkpoints.checkpoint_files import OWNER
from include.control.leases.process import Holder, Process
from include.lake import locations
from include.local import airflow
from include.local.up import SUPERVISOR
from tests.support.flows import only_in_full_runs
from tests.support.live import DRIVER, ODD_NAME, Live, running_platform
from tests.support.waiting import sleep_through, wait_until

KILLS = 10
SEED = int(os.environ.get("SLUICE_SEED", "4"))
BRONZE, SILVER = "bronze.tracker_events", "silver.tracker_readings"


@pytest.fixture(scope="module")
def live(tmp_path_factory) -> Iterator[Live]:
    with running_platform(tmp_path_factory.mktemp("live") / ODD_NAME) as platform:
        yield platform


def processes(driver: Holder, target: str) -> list[Process]:
    return {"python": [driver.python], "jvm": [driver.jvm], "both": [driver.jvm, driver.python]}[target]


def seconds_to_recover(live: Live, target: str, with_command: bool) -> float:
    """Kill a driver, or one of its processes. Returns the seconds until the next commit of its successor."""
    driver = live.wait_for_driver()
    for process in processes(driver, target):
        os.kill(process.pid, signal.SIGKILL)
    killed_at = time.monotonic()
    wait_until(lambda: not (driver.jvm.is_alive or driver.python.is_alive), 60)
    commits_before = live.commits()
    if with_command:
        live.run_command("restart", driver=DRIVER)
    wait_until(lambda: live.commits() > commits_before, 300, live.diagnostics)
    return time.monotonic() - killed_at


@only_in_full_runs
def test_a_killed_driver_comes_back_by_itself_and_nothing_is_lost_or_doubled(live: Live, capsys):
    rng, recoveries = random.Random(SEED), []
    for number in range(KILLS):
        sleep_through(rng.uniform(0, 4))
        # Automatic restarts back off, so every third restart is a command.
        recoveries.append(seconds_to_recover(live, ("both", "python", "jvm")[number % 3], number % 3 == 2))
    live.assert_nothing_lost_or_doubled()
    with capsys.disabled():
        print(
            f"\n{KILLS} kills under Airflow (seed {SEED}), {live.count(BRONZE):,} records: 0 lost, 0 doubled; "
            f"from kill to next commit {statistics.median(recoveries):.0f} s median, {max(recoveries):.0f} s worst"
        )


@only_in_full_runs
def test_parts_of_airflow_that_die_take_no_stream_along_and_start_none_twice(live: Live):
    components = random.Random(SEED).sample(sorted(airflow.COMMANDS), len(airflow.COMMANDS))
    driver = live.wait_for_driver()
    with live.never_two_drivers():
        for component in components:
            kill(live.platform.find(component))
            live.wait_for_commit()
            live.up()
            live.wait_for_supervisor()
            live.wait_for_commit()
            assert live.driver() == driver, live.diagnostics()
    live.assert_nothing_lost_or_doubled()


@only_in_full_runs
def test_a_worker_that_dies_at_the_supervisors_work_keeps_the_supervisor_from_it_for_a_few_minutes_at_most(live: Live):
    driver = live.wait_for_driver()
    with live.never_two_drivers():
        wait_until(lambda: not live.busy_workers(), 120)
        live.trigger_supervisor()
        wait_until(live.busy_workers, 120)
        for process in live.busy_workers():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        live.wait_for_supervisor(timeout_seconds=300)
        live.wait_for_commit()
        assert live.driver() == driver, live.diagnostics()
    live.assert_nothing_lost_or_doubled()


def kill(process: Process | None) -> None:
    assert process, "it was dead before"
    process.kill()


@only_in_full_runs
def test_a_driver_that_sleeps_is_replaced_and_writes_no_more(live: Live):
    suspended_driver = live.wait_for_driver()
    live.wait_for_commit()
    for process in processes(suspended_driver, "both"):
        os.kill(process.pid, signal.SIGSTOP)
    wait_until(lambda: live.driver() is None, 60)
    live.trigger_supervisor()
    live.wait_for_driver(other_than=suspended_driver)
    for process in processes(suspended_driver, "both"):
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
    assert not (suspended_driver.jvm.is_alive or suspended_driver.python.is_alive)
    live.wait_for_commit()
    live.assert_nothing_lost_or_doubled()


@only_in_full_runs
def test_what_the_engineer_asks_for_is_done_and_the_other_flows_go_on(live: Live):
    driver = live.wait_for_driver()
    live.run_command("stop", flow=SILVER)
    wait_until(lambda: SILVER not in live.holders(), 60, live.diagnostics)
    commits = live.commits(SILVER)
    live.wait_for_commit(BRONZE)
    assert live.commits(SILVER) == commits
    live.run_command("start", flow=SILVER)
    wait_until(lambda: live.commits(SILVER) > commits, 120, live.diagnostics)
    assert live.driver() == driver
    live.assert_nothing_lost_or_doubled()


@only_in_full_runs
def test_drain_catch_up_and_restart_do_what_they_say(live: Live):
    driver = live.wait_for_driver()
    live.run_command("drain", flow=SILVER)
    wait_until(lambda: SILVER not in live.holders(), 120, live.diagnostics)
    commits = live.commits(SILVER)
    live.wait_for_commit(BRONZE)
    assert live.commits(SILVER) == commits
    live.run_command("catch up", flow=SILVER)
    wait_until(lambda: live.commits(SILVER) > commits and SILVER not in live.holders(), 120, live.diagnostics)
    live.run_command("start", flow=SILVER)
    wait_until(lambda: SILVER in live.holders(), 120, live.diagnostics)
    epochs = live.epoch(BRONZE), live.epoch(SILVER)
    live.run_command("restart", flow=SILVER)
    wait_until(lambda: live.epoch(SILVER) > epochs[1], 120, live.diagnostics)
    live.wait_for_commit(SILVER)
    assert (live.epoch(BRONZE), live.driver()) == (epochs[0], driver)
    with live.never_two_drivers():
        live.run_command("restart", driver=DRIVER)
        live.wait_for_driver(other_than=driver)
        live.wait_for_commit()
    live.assert_nothing_lost_or_doubled()


@only_in_full_runs
def test_a_damaged_checkpoint_is_one_red_named_task_until_its_reset_is_approved(live: Live):
    driver = live.wait_for_driver()
    live.run_command("stop", flow=SILVER)
    wait_until(lambda: SILVER not in live.holders(), 60, live.diagnostics)
    (locations.checkpoints(SILVER, live.config) / "1" / OWNER).unlink()
    live.run_command("start", flow=SILVER)
    wait_until(lambda: failed_task_logs(live), 180, live.diagnostics)
    [(flow, log)] = failed_task_logs(live)
    assert flow == SILVER
    assert "BROKEN: " in log
    assert "so nobody knows whose checkpoint that is" in log
    live.wait_for_commit(BRONZE)
    live.on_call.trigger_control("reset", "reset checkpoint", flow=SILVER)
    live.on_call.wait_for_question("reset")
    live.on_call.answer("reset", "Approve")
    live.on_call.wait("reset", "obey", "success")
    live.wait_for_commit(SILVER)
    assert live.driver() == driver
    live.assert_nothing_lost_or_doubled()
    live.trigger_supervisor()
    live.wait_for_supervisor()
    wait_until(lambda: not failed_task_logs(live), 120, live.diagnostics)


def failed_task_logs(live: Live) -> list[tuple[str, str]]:
    """Name and log of each failed task in the newest completed run of the supervisor."""
    runs = live.on_call.rest(f"{SUPERVISOR}/dagRuns?order_by=-run_after&limit=5")["dag_runs"]
    newest = next(run["dag_run_id"] for run in runs if run["state"] in ("success", "failed"))
    response = live.on_call.rest(f"{SUPERVISOR}/dagRuns/{newest}/taskInstances?task_id=unhealthy&state=failed")
    path = f"{SUPERVISOR}/dagRuns/{newest}/taskInstances/unhealthy/logs/1?map_index="
    return [
        (task["rendered_map_index"], str(live.on_call.rest(path + str(task["map_index"]))))
        for task in response["task_instances"]
    ]
