"""A driver whose control database is away. The short form of this is tests/unit/test_keeper.py."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.flows import only_in_full_runs
from tests.pipeline import Pipeline, part
from tests.waiting import wait_until


@contextmanager
def database_away(pipeline: Pipeline) -> Iterator[float]:
    """Nobody else can write to it meanwhile. Gives the moment at which the driver's leases expire."""
    connection = sqlite3.connect(pipeline.home / "control.db", isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield connection.execute("SELECT min(expires_at) FROM lease").fetchone()[0]
    finally:
        connection.rollback()
        connection.close()


@only_in_full_runs
def test_a_short_absence_goes_unnoticed_and_a_long_one_ends_the_driver_before_its_lease(pipeline: Pipeline):
    pipeline.produce(part(1, count=500))
    driver = pipeline.submit()
    pipeline.wait_until_gold_is_right()
    with database_away(pipeline) as expires_at:
        pipeline.produce(part(2, count=500))
        wait_until(lambda: time.time() > expires_at - pipeline.lease_seconds / 2, 30)
    pipeline.wait_until_gold_is_right()
    assert driver.poll() is None
    with database_away(pipeline) as expires_at:
        pipeline.produce(part(3, count=500))
        wait_until(lambda: driver.poll() is not None, 30, pipeline.log.read_text)
        assert time.time() < expires_at
    assert driver.returncode == 6
    assert (
        "this driver ends at once, because it may no longer write: the control database did not answer"
        in pipeline.log.read_text()
    )
    driver = pipeline.submit()
    pipeline.wait_until_gold_is_right()
    pipeline.assert_nothing_lost_or_doubled()
