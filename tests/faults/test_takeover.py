"""Drivers that sleep, are started twice, or are asked to stop while events flow."""

import os
import re
import signal
import subprocess

import psutil

from tests.support.flows import only_in_full_runs
from tests.support.pipeline import Pipeline, part
from tests.support.waiting import wait_until

BRONZE = "bronze.tracker_events"


def test_a_second_driver_leaves_and_a_sleeping_one_is_ended_by_its_successor(at_work: Pipeline):
    first = at_work.submitted[-1]
    second = at_work.run("--flow", "silver.tracker_readings")
    assert second.returncode == 5
    assert "silver.tracker_readings is already written by driver 'main' on" in second.stdout
    assert f"JVM {first.pid}" in second.stdout
    assert "Traceback" not in second.stdout
    assert first.poll() is None
    asleep = [psutil.Process(first.pid), *psutil.Process(first.pid).children()]
    for process in asleep:
        os.kill(process.pid, signal.SIGSTOP)
    at_work.produce_next()
    wait_until(lambda: not at_work.holders(), 60)
    third = at_work.submit()
    at_work.wait_until_gold_is_right()
    assert first.wait(10) == -signal.SIGKILL
    assert third.poll() is None
    at_work.assert_nothing_lost_or_doubled()


@only_in_full_runs
def test_of_drivers_started_by_hand_at_one_instant_one_runs_and_the_others_name_it(pipeline: Pipeline):
    pipeline.produce(part(1, count=500))
    begun = [pipeline.submit("--flow", BRONZE) for _ in range(3)]
    wait_until(lambda: len(left(begun)) == 2, 240, pipeline.log.read_text)
    [runs] = [one for one in begun if one.poll() is None]
    wait_until(lambda: pipeline.count(BRONZE) == 500, 120, pipeline.log.read_text)
    late = [pipeline.submit("--flow", BRONZE) for _ in range(2)]
    wait_until(lambda: len(left(late)) == 2, 240, pipeline.log.read_text)
    assert {one.returncode for one in left(begun + late)} == {5}
    assert len(re.findall(rf"sluice: {BRONZE} .*driver 'by hand' .*JVM {runs.pid}\)", pipeline.log.read_text())) == 4
    pipeline.produce(part(2, count=500))
    wait_until(lambda: pipeline.count(BRONZE) == 1_000, 120, pipeline.log.read_text)
    assert runs.poll() is None


def left(started: list[subprocess.Popen]) -> list[subprocess.Popen]:
    return [one for one in started if one.poll() is not None]


@only_in_full_runs
def test_a_flow_that_is_no_longer_wanted_stops_and_the_others_go_on(pipeline: Pipeline):
    pipeline.produce(part(1, count=500))
    driver = pipeline.submit()
    pipeline.wait_until_gold_is_right()
    before = pipeline.gold()
    pipeline.want("gold.heart_rate_by_model", "stopped")
    pipeline.produce(part(2, count=500))
    wait_until(lambda: pipeline.count("bronze.tracker_events") == 1000, 60, pipeline.log.read_text)
    assert pipeline.gold() == before
    for flow in ("bronze.tracker_events", "silver.tracker_readings"):
        pipeline.want(flow, "stopped")
    assert driver.wait(60) == 0, pipeline.log.read_text()[-3000:]
    for flow in ("bronze.tracker_events", "silver.tracker_readings", "gold.heart_rate_by_model"):
        pipeline.want(flow, "running")
    assert pipeline.run("--once").returncode == 0
    pipeline.assert_nothing_lost_or_doubled()
