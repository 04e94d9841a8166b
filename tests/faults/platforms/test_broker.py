"""A Kafka broker hangs while a pipeline runs."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
from sqlalchemy import func, select

from include.control.store import database
from include.control.store.schema import leases
from tests.support.flows import FULL
from tests.support.pipeline import Pipeline
from tests.support.waiting import wait_until

BRONZE, SILVER = "bronze.tracker_events", "silver.tracker_readings"
SILENT_SECONDS = 60 if FULL else 10


@contextmanager
def suspended_broker(pipeline: Pipeline) -> Iterator[None]:
    """Suspend the broker process during the block."""
    config_file = str(pipeline.home / "broker" / "server.properties")
    [broker] = [
        process for process in psutil.process_iter(["cmdline"]) if config_file in (process.info["cmdline"] or [])
    ]
    broker.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        broker.send_signal(signal.SIGCONT)


def test_a_broker_that_is_silent_for_a_while_costs_time_and_nothing_else(at_work: Pipeline):
    driver = at_work.submitted[-1]
    with suspended_broker(at_work):
        silent_since = time.time()
        wait_until(lambda: renewed_at(at_work) > silent_since + SILENT_SECONDS, SILENT_SECONDS + 60)
        assert set(at_work.holders()) >= {BRONZE, SILVER}
    at_work.produce_next()
    at_work.wait_until_gold_is_right()
    assert driver.poll() is None
    at_work.assert_nothing_lost_or_doubled()


def renewed_at(pipeline: Pipeline) -> float:
    """The time of the driver's last renewal of all leases, in seconds since 1970."""
    with database.transaction(pipeline.control) as connection:
        earliest_expiry = select(func.min(leases.c.expires_at)).where(leases.c.flow.in_([BRONZE, SILVER]))
        return connection.execute(earliest_expiry).scalar_one() - pipeline.lease_seconds
