"""The whole platform, with events flowing all the time, while its drivers and the parts of Airflow are killed.

By default a short form; `make faults` makes it the long one.
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

from include.control.process import Holder, Process
from include.local import airflow
from include.local.up import SUPERVISOR
from include.readers.offset_log import OWNER
from tests.support.flows import FULL, only_in_full_runs
from tests.support.live import DRIVER, Live, running
from tests.support.waiting import sleep_through, wait_until

KILLS = 10 if FULL else 1
SEED = int(os.environ.get("SLUICE_SEED", "4"))
BRONZE, SILVER = "bronze.tracker_events", "silver.tracker_readings"


@pytest.fixture(scope="module")
def live(tmp_path_factory) -> Iterator[Live]:
    with running(tmp_path_factory.mktemp("live")) as made:
        yield made


def halves(driver: Holder, which: str) -> list[Process]:
    return {"python": [driver.python], "jvm": [driver.jvm], "both": [driver.jvm, driver.python]}[which]


def seconds_to_recover(live: Live, which: str, is_asked_for: bool) -> float:
    """From the kill of (half of) the driver to the next commit of its successor."""
    driver = live.wait_for_driver()
    for half in halves(driver, which):
        os.kill(half.pid, signal.SIGKILL)
    killed_at = time.monotonic()
    wait_until(lambda: not (driver.jvm.is_alive or driver.python.is_alive), 60)
    before = live.commits()
    if is_asked_for:
        live.order("restart", driver=DRIVER)
    wait_until(lambda: live.commits() > before, 300, live.story)
    return time.monotonic() - killed_at


def test_a_killed_driver_comes_back_by_itself_and_nothing_is_lost_or_doubled(live: Live, capsys):
    dice, recoveries = random.Random(SEED), []
    for number in range(KILLS):
        sleep_through(dice.uniform(0, 4))
        # Each start follows the one before more slowly, until somebody asks for it.
        recoveries.append(seconds_to_recover(live, ("both", "python", "jvm")[number % 3], number % 3 == 2))
    live.assert_nothing_lost_or_doubled()
    with capsys.disabled():
        print(
            f"\n{KILLS} kills under Airflow (seed {SEED}), {live.count(BRONZE):,} records: 0 lost, 0 doubled; "
            f"from kill to next commit {statistics.median(recoveries):.0f} s median, {max(recoveries):.0f} s worst"
        )


def test_parts_of_airflow_that_die_take_no_stream_along_and_start_none_twice(live: Live):
    parts = random.Random(SEED).sample(sorted(airflow.COMMANDS), len(airflow.COMMANDS))
    driver = live.wait_for_driver()
    with live.never_two_drivers():
        for dying in [[part] for part in parts] if FULL else [parts]:
            for part in dying:
                kill(live.platform.find(part))
            live.wait_for_commit()
            live.up()
            live.wait_for_pulse()
            live.wait_for_commit()
            assert live.driver() == driver, live.story()
    live.assert_nothing_lost_or_doubled()


@only_in_full_runs
def test_a_worker_that_dies_at_the_supervisors_work_keeps_the_supervisor_from_it_for_a_few_minutes_at_most(live: Live):
    driver = live.wait_for_driver()
    with live.never_two_drivers():
        wait_until(lambda: not live.busy_workers(), 120)
        live.supervise()
        wait_until(live.busy_workers, 120)
        for process in live.busy_workers():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        live.wait_for_pulse(timeout_seconds=300)
        live.wait_for_commit()
        assert live.driver() == driver, live.story()
    live.assert_nothing_lost_or_doubled()


def kill(process: Process | None) -> None:
    assert process, "it was dead before"
    process.kill()


@only_in_full_runs
def test_a_driver_that_sleeps_is_replaced_and_writes_no_more(live: Live):
    asleep = live.wait_for_driver()
    live.wait_for_commit()
    for half in halves(asleep, "both"):
        os.kill(half.pid, signal.SIGSTOP)
    wait_until(lambda: live.driver() is None, 60)
    live.supervise()
    live.wait_for_driver(other_than=asleep)
    for half in halves(asleep, "both"):
        with suppress(ProcessLookupError):
            os.kill(half.pid, signal.SIGCONT)
    assert not (asleep.jvm.is_alive or asleep.python.is_alive)
    live.wait_for_commit()
    live.assert_nothing_lost_or_doubled()


@only_in_full_runs
def test_what_the_engineer_asks_for_is_done_and_the_other_flows_go_on(live: Live):
    driver = live.wait_for_driver()
    live.order("stop", flow=SILVER)
    wait_until(lambda: SILVER not in live.holders(), 60, live.story)
    commits = live.commits(SILVER)
    live.wait_for_commit(BRONZE)
    assert live.commits(SILVER) == commits
    live.order("start", flow=SILVER)
    wait_until(lambda: live.commits(SILVER) > commits, 120, live.story)
    assert live.driver() == driver
    live.assert_nothing_lost_or_doubled()


@only_in_full_runs
def test_drain_catch_up_and_restart_do_what_they_say(live: Live):
    driver = live.wait_for_driver()
    live.order("drain", flow=SILVER)
    wait_until(lambda: SILVER not in live.holders(), 120, live.story)
    commits = live.commits(SILVER)
    live.wait_for_commit(BRONZE)
    assert live.commits(SILVER) == commits
    live.order("catch up", flow=SILVER)
    wait_until(lambda: live.commits(SILVER) > commits and SILVER not in live.holders(), 120, live.story)
    live.order("start", flow=SILVER)
    wait_until(lambda: SILVER in live.holders(), 120, live.story)
    epochs = live.epoch(BRONZE), live.epoch(SILVER)
    live.order("restart", flow=SILVER)
    wait_until(lambda: live.epoch(SILVER) > epochs[1], 120, live.story)
    live.wait_for_commit(SILVER)
    assert (live.epoch(BRONZE), live.driver()) == (epochs[0], driver)
    with live.never_two_drivers():
        live.order("restart", driver=DRIVER)
        live.wait_for_driver(other_than=driver)
        live.wait_for_commit()
    live.assert_nothing_lost_or_doubled()


@only_in_full_runs
def test_a_damaged_checkpoint_is_one_red_named_task_until_its_reset_is_approved(live: Live):
    driver = live.wait_for_driver()
    live.order("stop", flow=SILVER)
    wait_until(lambda: SILVER not in live.holders(), 60, live.story)
    (live.where.checkpoints(SILVER) / "1" / OWNER).unlink()
    live.order("start", flow=SILVER)
    wait_until(lambda: red_logs(live), 180, live.story)
    [(flow, log)] = red_logs(live)
    assert flow == SILVER
    assert "BROKEN: " in log
    assert "so nobody knows whose checkpoint that is" in log
    live.wait_for_commit(BRONZE)
    live.on_call.ask("reset", "reset checkpoint", flow=SILVER)
    live.on_call.wait_for_question("reset")
    live.on_call.answer("reset", "Approve")
    live.on_call.wait("reset", "obey", "success")
    live.wait_for_commit(SILVER)
    assert live.driver() == driver
    live.assert_nothing_lost_or_doubled()
    live.supervise()
    live.wait_for_pulse()
    wait_until(lambda: not red_logs(live), 120, live.story)


def red_logs(live: Live) -> list[tuple[str, str]]:
    """Name and log of each red task in the newest run of the supervisor that has ended."""
    runs = live.on_call.rest(f"{SUPERVISOR}/dagRuns?order_by=-run_after&limit=5")["dag_runs"]
    newest = next(run["dag_run_id"] for run in runs if run["state"] in ("success", "failed"))
    found = live.on_call.rest(f"{SUPERVISOR}/dagRuns/{newest}/taskInstances?task_id=sick&state=failed")
    path = f"{SUPERVISOR}/dagRuns/{newest}/taskInstances/sick/logs/1?map_index="
    return [
        (one["rendered_map_index"], str(live.on_call.rest(path + str(one["map_index"]))))
        for one in found["task_instances"]
    ]
