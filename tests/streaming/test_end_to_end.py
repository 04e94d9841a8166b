"""From Kafka to gold, held against plain Python."""

from datetime import UTC, datetime, timedelta

import pytest

from include.local.events import events
from tests.pipeline import Pipeline, wait_until

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


def part(number: int, count: int = 3_000) -> list:
    """A seeded share of the story: each part goes on where the one before ended."""
    return list(events(seed=number, count=count, start=START + timedelta(minutes=number), per_second=50))


def test_gold_is_exactly_what_plain_python_makes_of_the_same_events(pipeline: Pipeline):
    sent = part(1)
    assert {event.kind for event in sent} >= {"malformed", "empty", "tombstone", "wrong type", "late", "repeated"}
    pipeline.produce(sent)
    done = pipeline.run("--once")
    assert done.returncode == 0, done.stderr
    pipeline.assert_nothing_lost_or_doubled()
    pipeline.produce(part(2))
    for flow in ("bronze.tracker_events", "silver.tracker_readings", "gold.heart_rate_by_model"):
        done = pipeline.run("--once", "--flow", flow)
        assert done.returncode == 0, done.stderr
    pipeline.assert_nothing_lost_or_doubled()


@pytest.mark.parametrize("which", ["python", "jvm", "both"])
def test_a_killed_driver_loses_and_doubles_nothing(pipeline: Pipeline, which: str):
    driver = pipeline.submit()
    pipeline.produce(part(1))
    wait_until(lambda: pipeline.count("silver.tracker_readings"), 120, pipeline.log.read_text)
    pipeline.produce(part(2))
    pipeline.kill(driver, which)
    pipeline.produce(part(3))
    driver = pipeline.submit()
    pipeline.wait_until_gold_is_right()
    assert driver.poll() is None
    pipeline.assert_nothing_lost_or_doubled()


def test_a_second_driver_leaves_with_exit_code_5_and_names_the_holder(pipeline: Pipeline):
    pipeline.produce(part(1, count=200))
    driver = pipeline.submit()
    pipeline.wait_until_gold_is_right()
    second = pipeline.run("--flow", "silver.tracker_readings")
    assert second.returncode == 5
    assert "silver.tracker_readings is already written by driver 'main' on" in second.stderr
    assert f"JVM {driver.pid}" in second.stderr
    assert "Traceback" not in second.stderr
    assert driver.poll() is None
