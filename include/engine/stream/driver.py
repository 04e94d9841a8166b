"""A Spark driver that hosts flows. It takes leases before it starts, and ends before it loses the right to write."""

import os
import signal
import threading
from collections.abc import Callable
from typing import Never

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from include import catalog, logs
from include.control.flows import orders, placements
from include.control.lease_renewer import LeaseRenewer
from include.control.leases import lease
from include.control.leases.process import Holder, Process
from include.control.store import database
from include.engine.rows import prepare
from include.engine.session import jvm_of, open_session
from include.engine.stream import executors
from include.engine.stream.host import Host
from include.engine.stream.side_jobs import MakeSideJobs
from include.errors import LeaseLost, UsageError
from include.settings import HALT_SECONDS, settings
from include.spec import Flow

BY_HAND = "by hand"


def flows_of(driver: str) -> list[Flow]:
    """Returns the flows of a driver, with those that were moved to it. Raises UsageError where it has none."""
    drivers = placements.place(database.connect(settings().control_url), catalog.load()).drivers()
    if driver not in drivers:
        raise UsageError(f"no flow belongs to driver '{driver}': there are {', '.join(drivers)}")
    return drivers[driver]


def run(
    flows: list[Flow], driver: str | None = None, once: bool = False, make_side_jobs: MakeSideJobs | None = None
) -> None:
    """Hosts `flows`, given in graph order, until stopped; with `once`, until each has read its source to the end.

    driver: name of the supervised driver, whose flows start and stop one by one. None means started by hand, which
    takes the leases of all `flows` or of none. make_side_jobs: makes the side jobs of a supervised driver.

    Raises LeaseHeld before it touches anything, Unreachable, and if started by hand FlowFailed for the first flow that
    fails.
    """
    engine = database.connect(settings().control_url)
    names = [table.flow for table in flows]
    jvm = jvm_pid()
    name = driver or BY_HAND
    logs.start(name)
    renewer = LeaseRenewer(engine, Holder.here(name, jvm), settings().lease_seconds, lambda reason: halt(jvm, reason))
    renewer.take([lease.driver_lease(driver)] if driver else names)
    renewer.start()
    try:
        if not once:
            orders.begin(engine, names, by_hand=driver is None)
        size = orders.read(engine, driver, []).executors if driver else None
        spark = open_session(f"sluice {name}", catalog.load(), executors.conf_of(name, size))
        # Delta's queries of its log are small. Each query's session starts with this setting; its batches tune it.
        prepare.tune(spark, expected_rows=0)
        host = Host(spark, engine, renewer, name)
        side_jobs = make_side_jobs(spark, engine, name) if make_side_jobs and driver else None
        try:
            host.run_once(flows) if once else host.run(flows, is_supervised=driver is not None, side_jobs=side_jobs)
        finally:
            # Queries and jobs end before the leases go back, so that this driver writes nothing without a lease.
            if side_jobs:
                stop(side_jobs.end, jvm)
            stop(host.stop, jvm)
    finally:
        renewer.stop()


def stop(end: Callable[[], None], jvm: int) -> None:
    """Returns when nothing that `end` ends can write any more, or halts this driver."""
    process = Process.of(jvm)
    try:
        end()
    except (Py4JError, PySparkException, OSError) as error:
        if process.is_alive:
            halt(jvm, f"a query cannot be stopped, and its lease must not be given back: {error}")


def jvm_pid() -> int:
    """Returns the process id of the JVM that this Python drives: spark-submit's own, or one that is started here."""
    SparkContext._ensure_initialized()
    return int(jvm_of(SparkContext).java.lang.ProcessHandle.current().pid())


def halt(jvm: int, reason: str) -> Never:
    """Kills the JVM, then this process. If only Python ended, the JVM would go on committing."""
    logs.error(f"this driver ends at once, because it may no longer write: {reason}")
    # `Runtime.halt` gives spark-submit the exit code. If the JVM does not respond, SIGKILL ends it.
    halt_thread = threading.Thread(
        target=lambda: jvm_of(SparkContext).java.lang.Runtime.getRuntime().halt(LeaseLost.exit_code), daemon=True
    )
    halt_thread.start()
    halt_thread.join(HALT_SECONDS)
    try:
        os.kill(jvm, signal.SIGKILL)
    finally:
        os._exit(LeaseLost.exit_code)
