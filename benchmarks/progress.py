"""What it costs to keep query progress: python -m benchmarks.progress [--small], in a home of its own, no broker.

A busy flow, whose driver stores progress reports in every second block of batches. Measures CPU with and without.
"""

import argparse
import os
import statistics
import threading
import time

from deltalake import write_deltalake
from pyspark.sql import SparkSession

from benchmarks.support.session import cpu_seconds, session
from benchmarks.windows import rows
from include import catalog
from include.catalog import Catalog
from include.control import commands
from include.control.commands import Action, Command
from include.control.flows import orders
from include.control.lease_renewer import LeaseRenewer
from include.control.leases.process import Holder
from include.control.store import database
from include.engine.stream import driver
from include.engine.stream.host import Host
from include.errors import report
from include.lake import locations
from include.monitoring import query_progress
from include.settings import settings
from include.spec import Delta, Flow

BUSY = Flow(
    name="silver.busy",
    comment="never idle",
    source=Delta("bronze.events", max_files=1),
    schema="number BIGINT, time TIMESTAMP, value INT, payload BINARY",
    interval_seconds=0.1,
)
ROWS_A_BATCH = 2_000
POLL_SECONDS = 0.02


def fill(batches: int) -> None:
    path = str(locations.table_path("bronze.events"))
    for seed in range(batches):
        write_deltalake(path, rows(ROWS_A_BATCH, seed), mode="append")


class Busy:
    """The flow, in a driver of this process."""

    def __init__(self, spark: SparkSession) -> None:
        self.engine = engine = database.connect(settings().control_url)
        self.lease_renewer = LeaseRenewer(
            engine, Holder.here("main", driver.jvm_pid()), settings().lease_seconds, lambda reason: os.abort()
        )
        self.lease_renewer.take([BUSY.flow])
        self.lease_renewer.start()
        orders.begin(engine, [BUSY.flow], by_hand=False)
        # No table file declares the table.
        catalog.reload = lambda: Catalog({BUSY.name: BUSY})
        self.host = Host(spark, engine, self.lease_renewer, "main")
        self.keep = self.host._progress.keep
        self.thread = threading.Thread(target=lambda: self.host.run([BUSY], is_supervised=False), daemon=True)
        self.thread.start()
        self.wait_for(0)

    def end(self) -> None:
        commands.execute(self.engine, Command(Action.STOP, (BUSY.flow,), "benchmark", "it is over"))
        self.thread.join()
        self.lease_renewer.stop()

    @property
    def batch(self) -> int:
        running = self.host._flows.get(BUSY.flow)
        return -1 if running is None or running.batch is None else running.batch

    def wait_for(self, batch: int) -> None:
        while self.batch < batch:
            time.sleep(POLL_SECONDS)

    def block(self, batches: int, is_kept: bool) -> float:
        """CPU seconds per batch, over this number of batches."""
        if is_kept:
            # Stores the reports of the previous block, which do not belong to this one.
            self.keep(self.host._flows[BUSY.flow])
        self.host._progress.keep = self.keep if is_kept else lambda flow: None
        begin = self.batch + 1
        self.wait_for(begin)
        begin_seconds = cpu_seconds()
        self.wait_for(begin + batches)
        return (cpu_seconds() - begin_seconds) / batches


def compare(busy: Busy, blocks: int, batches: int) -> None:
    busy.wait_for(3 * batches)
    spent: dict[bool, list[float]] = {True: [], False: []}
    for number in range(blocks):
        # The second variant finds a warmer JVM, so the order alternates.
        for is_kept in (True, False) if number % 2 else (False, True):
            spent[is_kept].append(busy.block(batches, is_kept))
    kept, plain = (statistics.median(spent[is_kept]) for is_kept in (True, False))
    ratios = [
        kept_seconds / other_seconds for kept_seconds, other_seconds in zip(spent[True], spent[False], strict=True)
    ]
    quartiles = statistics.quantiles(ratios, n=4)
    print(
        f"a batch of {ROWS_A_BATCH:,} rows: {1000 * kept:.0f} ms of CPU with its report kept, {1000 * plain:.0f} ms "
        f"without; median of pairs {statistics.median(ratios):.3f} times as many (quartiles {quartiles[0]:.3f} to "
        f"{quartiles[2]:.3f}, {blocks} pairs of {batches} batches each)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.progress", description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="to see that it works; its figures say nothing")
    small = parser.parse_args().small
    with session(Catalog({})) as spark:
        blocks, batches = (2, 5) if small else (10, 20)
        fill((2 * blocks + 4) * (batches + 5))
        busy = Busy(spark)
        compare(busy, blocks, batches)
        print(f"{len(query_progress.newest(BUSY.flow, 10_000)):,} reports are in the journal")
        busy.end()


if __name__ == "__main__":
    report(main)
