"""Drivers are suspended, started twice, or stopped while a producer sends events."""

import os
import re
import signal
import subprocess

import psutil

from tests.support.flows import only_in_full_runs
from tests.support.pipeline import Pipeline, random_events
from tests.support.waiting import wait_until

BRONZE = "bronze.tracker_events"


def test_a_second_driver_leaves_and_a_sleeping_one_is_ended_by_its_successor(at_work: Pipeline):
    first_driver = at_work.submitted[-1]
    second_run = at_work.run("--flow", "silver.tracker_readings")
    assert second_run.returncode == 5
    assert "silver.tracker_readings is already written by driver 'main' on" in second_run.stdout
    assert f"JVM {first_driver.pid}" in second_run.stdout
    assert "Traceback" not in second_run.stdout
    assert first_driver.poll() is None
    suspended_processes = [psutil.Process(first_driver.pid), *psutil.Process(first_driver.pid).children()]
    for process in suspended_processes:
        os.kill(process.pid, signal.SIGSTOP)
    at_work.produce_next()
    wait_until(lambda: not at_work.holders(), 60)
    successor = at_work.submit()
    at_work.wait_until_gold_is_right()
    assert first_driver.wait(10) == -signal.SIGKILL
    assert successor.poll() is None
    at_work.assert_nothing_lost_or_doubled()


@only_in_full_runs
def test_of_drivers_started_by_hand_at_one_instant_one_runs_and_the_others_name_it(pipeline: Pipeline):
    pipeline.produce(random_events(1, count=500))
    first_drivers = [pipeline.submit("--flow", BRONZE) for _ in range(3)]
    wait_until(lambda: len(exited(first_drivers)) == 2, 240, pipeline.log.read_text)
    [survivor] = [driver for driver in first_drivers if driver.poll() is None]
    wait_until(lambda: pipeline.count(BRONZE) == 500, 120, pipeline.log.read_text)
    late_drivers = [pipeline.submit("--flow", BRONZE) for _ in range(2)]
    wait_until(lambda: len(exited(late_drivers)) == 2, 240, pipeline.log.read_text)
    assert {driver.returncode for driver in exited(first_drivers + late_drivers)} == {5}
    assert (
        len(re.findall(rf"sluice: {BRONZE} .*driver 'by hand' .*JVM {survivor.pid}\)", pipeline.log.read_text())) == 4
    )
    pipeline.produce(random_events(2, count=500))
    wait_until(lambda: pipeline.count(BRONZE) == 1_000, 120, pipeline.log.read_text)
    assert survivor.poll() is None


def exited(drivers: list[subprocess.Popen]) -> list[subprocess.Popen]:
    return [driver for driver in drivers if driver.poll() is not None]


@only_in_full_runs
def test_a_flow_that_is_no_longer_wanted_stops_and_the_others_go_on(pipeline: Pipeline):
    pipeline.produce(random_events(1, count=500))
    driver = pipeline.submit()
    pipeline.wait_until_gold_is_right()
    gold_before = pipeline.gold()
    pipeline.set_desired_state("gold.heart_rate_by_model", "stopped")
    pipeline.produce(random_events(2, count=500))
    wait_until(lambda: pipeline.count("bronze.tracker_events") == 1000, 60, pipeline.log.read_text)
    assert pipeline.gold() == gold_before
    for flow in ("bronze.tracker_events", "silver.tracker_readings"):
        pipeline.set_desired_state(flow, "stopped")
    assert driver.wait(60) == 0, pipeline.log.read_text()[-3000:]
    for flow in ("bronze.tracker_events", "silver.tracker_readings", "gold.heart_rate_by_model"):
        pipeline.set_desired_state(flow, "running")
    pipeline.run_once()
    pipeline.assert_nothing_lost_or_doubled()
