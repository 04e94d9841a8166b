"""A Spark driver that hosts flows: takes its leases, runs its flows, and never outlives its right to write."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Never

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from include import catalog
from include.control import lease, orders
from include.control.lease_renewer import LeaseRenewer
from include.control.process import Holder, Process
from include.control.store import database
from include.engine.batch import tuning
from include.engine.session import open_session
from include.engine.stream.host import Host
from include.engine.stream.side_jobs import MakeSideJobs
from include.errors import LeaseLost
from include.settings import HALT_SECONDS, settings
from include.spec import Table

BY_HAND = "by hand"


def run(flows: list[Table], driver: str | None = None, once: bool = False, besides: MakeSideJobs | None = None) -> None:
    """Host `flows`, given in graph order, until stopped; with `once`, until each has read its source to the end.

    driver: the supervised driver this is; its flows come and go on their own. None where somebody started it by hand,
    for all of `flows` or none. besides: makes what a supervised one does beside its flows. Raises LeaseHeld before
    anything is touched, Unreachable, and by hand FlowFailed for the first flow whose query fails.
    """
    engine = database.connect(settings().control_url)
    names = [table.flow for table in flows]
    jvm = jvm_pid()
    name = driver or BY_HAND
    keeper = LeaseRenewer(engine, Holder.here(name, jvm), settings().lease_seconds, lambda reason: halt(jvm, reason))
    keeper.take([lease.of_driver(driver)] if driver else names)
    keeper.start()
    try:
        if not once:
            orders.begin(engine, names, by_hand=driver is None)
        spark = open_session(f"sluice {name}", catalog.load())
        # What Delta asks of its log is small, too; each query's session begins with this and is tuned by its batches.
        tuning.tune(spark, expected_rows=0)
        host = Host(spark, engine, keeper, name)
        beside = besides(spark, engine, name) if besides and driver else None
        try:
            host.run_once(flows) if once else host.run(flows, is_supervised=driver is not None, beside=beside)
        finally:
            # Before the leases go back: nothing of this driver may write after that.
            if beside:
                stop(beside.end, jvm)
            stop(host.stop, jvm)
    finally:
        keeper.stop()


def stop(end: Callable[[], None], jvm: int) -> None:
    """Return when nothing that `end` ends can write any more, or end this driver."""
    process = Process.of(jvm)
    try:
        end()
    except (Py4JError, PySparkException, OSError) as error:
        if process.is_alive:
            halt(jvm, f"a query cannot be stopped, and its lease must not be given back: {error}")


def jvm_pid() -> int:
    """The JVM this Python drives: spark-submit's own, or one that is started here."""
    SparkContext._ensure_initialized()
    return int(SparkContext._jvm.java.lang.ProcessHandle.current().pid())


def halt(jvm: int, reason: str) -> Never:
    """End the JVM, then this process. Ending Python alone would leave the JVM committing."""
    print(f"sluice: this driver ends at once, because it may no longer write: {reason}", file=sys.stderr, flush=True)
    # `halt` gives spark-submit an exit code that says so; where the JVM does not answer, SIGKILL does it.
    polite = threading.Thread(
        target=lambda: SparkContext._jvm.java.lang.Runtime.getRuntime().halt(LeaseLost.exit_code), daemon=True
    )
    polite.start()
    polite.join(HALT_SECONDS)
    try:
        os.kill(jvm, signal.SIGKILL)
    finally:
        os._exit(LeaseLost.exit_code)
