"""A driver is killed several times at random moments while a producer sends events.

The default is one kill. `make faults` runs ninety, and twenty on S3. test_airflow.py has another ten, under Airflow.
"""

import os
import random
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from tests.support.flows import FULL
from tests.support.pipeline import TABLES, Pipeline
from tests.support.s3 import object_lake
from tests.support.waiting import sleep_through, wait_until

KILLS = (20 if object_lake.IS_USED else 90) if FULL else 1
SEED = int(os.environ.get("SLUICE_SEED", "4"))
EVENTS_PER_PART = 250


@contextmanager
def produce_continuously(pipeline: Pipeline) -> Iterator[None]:
    """Send about 50 events a second during the block."""
    stopped = threading.Event()

    def produce() -> None:
        while not stopped.is_set():
            pipeline.produce_next(EVENTS_PER_PART)
            stopped.wait(EVENTS_PER_PART / 50)

    with ThreadPoolExecutor() as pool:
        producer = pool.submit(produce)
        try:
            yield
        finally:
            stopped.set()
        producer.result()


def test_a_driver_killed_at_random_moments_loses_and_doubles_nothing(at_work: Pipeline, capsys):
    pipeline, driver = at_work, at_work.submitted[-1]
    rng = random.Random(SEED)
    recoveries: list[float] = []
    with produce_continuously(pipeline):
        killed_at, commits_before = time.monotonic(), pipeline.commits()
        for number in range(KILLS):
            if number % 5 != 4:
                # Every fifth kill hits a driver that still starts. All other kills hit a driver that commits.
                wait_until(lambda count=commits_before: pipeline.commits() > count, 180, pipeline.log.read_text)
                if number:
                    recoveries.append(time.monotonic() - killed_at)
                    with capsys.disabled():
                        print(f"\rkill {number} of {KILLS}: next commit after {recoveries[-1]:.0f} s", end="")
            sleep_through(rng.uniform(0, 4))
            pipeline.kill(driver, ("python", "jvm", "both")[number % 3])
            killed_at, commits_before = time.monotonic(), pipeline.commits()
            driver = pipeline.submit()
        wait_until(lambda: pipeline.commits() > commits_before, 180, pipeline.log.read_text)
        recoveries.append(time.monotonic() - killed_at)
    pipeline.wait_until_gold_is_right(timeout_seconds=300)
    assert driver.poll() is None
    pipeline.assert_nothing_lost_or_doubled()
    pipeline.assert_the_ledger_agrees()
    with capsys.disabled():
        print(
            f"\n{KILLS} kills (seed {SEED}), {pipeline.count(TABLES[0]):,} records: 0 lost, 0 doubled; "
            f"from kill to the next commit {statistics.median(recoveries):.0f} s median, {max(recoveries):.0f} s worst"
        )
