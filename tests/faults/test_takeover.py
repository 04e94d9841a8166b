"""Drivers that die, sleep or are started twice while events flow."""

import os
import signal

import psutil

from tests.pipeline import Pipeline, part, wait_until


def test_a_killed_driver_loses_and_doubles_nothing(pipeline: Pipeline):
    driver = pipeline.submit()
    pipeline.produce(part(0))
    for number, which in enumerate(("python", "jvm", "both"), start=1):
        held = pipeline.count("silver.tracker_readings")
        wait_until(lambda held=held: pipeline.count("silver.tracker_readings") > held, 120, pipeline.log.read_text)
        pipeline.produce(part(number))
        pipeline.kill(driver, which)
        pipeline.produce(part(number + 10))
        driver = pipeline.submit()
    pipeline.wait_until_gold_is_right()
    assert driver.poll() is None
    pipeline.assert_nothing_lost_or_doubled()


def test_a_second_driver_leaves_and_a_sleeping_one_is_ended_by_its_successor(pipeline: Pipeline):
    pipeline.produce(part(1, count=500))
    first = pipeline.submit()
    pipeline.wait_until_gold_is_right()
    second = pipeline.run("--flow", "silver.tracker_readings")
    assert second.returncode == 5
    assert "silver.tracker_readings is already written by driver 'main' on" in second.stdout
    assert f"JVM {first.pid}" in second.stdout
    assert "Traceback" not in second.stdout
    assert first.poll() is None
    asleep = [psutil.Process(first.pid), *psutil.Process(first.pid).children()]
    for process in asleep:
        os.kill(process.pid, signal.SIGSTOP)
    pipeline.produce(part(2, count=500))
    wait_until(lambda: not pipeline.holders(), 60)
    third = pipeline.submit()
    pipeline.wait_until_gold_is_right()
    assert first.wait(10) == -signal.SIGKILL
    assert third.poll() is None
    pipeline.assert_nothing_lost_or_doubled()


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
