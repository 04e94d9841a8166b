"""A broker that hangs while events flow."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from tests.flows import only_in_full_runs
from tests.pipeline import Pipeline, part

AWAY_SECONDS = 60


@contextmanager
def broker_stopped(pipeline: Pipeline) -> Iterator[None]:
    """Alive, and silent."""
    mark = str(pipeline.home / "broker" / "server.properties")
    [broker] = [one for one in psutil.process_iter(["cmdline"]) if mark in (one.info["cmdline"] or [])]
    broker.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        broker.send_signal(signal.SIGCONT)


@only_in_full_runs
def test_a_broker_that_is_silent_for_a_while_costs_time_and_nothing_else(pipeline: Pipeline):
    pipeline.produce(part(1, count=500))
    driver = pipeline.submit()
    pipeline.wait_until_gold_is_right()
    with broker_stopped(pipeline):
        threading.Event().wait(AWAY_SECONDS)
        assert set(pipeline.holders()) >= {"bronze.tracker_events", "silver.tracker_readings"}
    pipeline.produce(part(2, count=500))
    pipeline.wait_until_gold_is_right()
    assert driver.poll() is None
    pipeline.assert_nothing_lost_or_doubled()
