"""The SQLite control database of a driver is locked."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.pipeline import Pipeline
from tests.support.waiting import wait_until


@contextmanager
def locked_database(pipeline: Pipeline) -> Iterator[float]:
    """Lock the database for writes during the block. Yields the time at which the driver's leases expire."""
    connection = sqlite3.connect(pipeline.home / "control.db", isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield connection.execute("SELECT min(expires_at) FROM lease WHERE expires_at > ?", (time.time(),)).fetchone()[0]
    finally:
        connection.rollback()
        connection.close()


def test_a_short_absence_goes_unnoticed_and_a_long_one_ends_the_driver_before_its_lease(at_work: Pipeline):
    driver = at_work.submitted[-1]
    with locked_database(at_work) as expires_at:
        at_work.produce_next()
        wait_until(lambda: time.time() > expires_at - at_work.lease_seconds / 2, 30)
    at_work.wait_until_gold_is_right()
    assert driver.poll() is None
    with locked_database(at_work) as expires_at:
        at_work.produce_next()
        wait_until(lambda: driver.poll() is not None, 30, at_work.log.read_text)
        assert time.time() < expires_at
    assert driver.returncode == 6
    assert (
        "this driver ends at once, because it may no longer write: the control database did not answer"
        in at_work.log.read_text()
    )
    at_work.submit()
    at_work.wait_until_gold_is_right()
    at_work.assert_nothing_lost_or_doubled()
