"""Jobs inside a driver that runs anyway, beside its flows: asked for by rows of the control database.

Such a job has a thread, a Spark session and leases of its own. So the flows meet it at their gates as they meet one in
another process, and whatever becomes of it, they go on.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from pyspark import InheritableThread
from pyspark.sql import SparkSession
from sqlalchemy import Engine

from include import catalog
from include.catalog import Catalog
from include.control.lease_renewer import LeaseRenewer
from include.control.orders import Orders
from include.control.process import Holder
from include.engine import failure
from include.engine.jobs import requested_jobs
from include.engine.jobs.requested_jobs import AskedJob
from include.engine.jobs.window import Worker
from include.engine.stream import driver
from include.engine.stream.host import Host
from include.errors import SluiceError, Unreachable
from include.settings import settings

# By which its Spark jobs can be ended, and in which they take turns with those of the flows.
TAG = "sluice-job"
LEAVES = "its driver ends: the next one goes on with it"
# How long it may take to end its jobs.
END_SECONDS = 60


class JobRunner:
    """Does what its driver is asked for, one after the other."""

    def __init__(self, spark: SparkSession, engine: Engine, name: str) -> None:
        self._spark = spark
        self._engine = engine
        self._name = name
        self._jvm = driver.jvm_pid()
        self._thread: threading.Thread | None = None
        self._keeper: LeaseRenewer | None = None
        # Why it ends before it is done.
        self._ends: str | None = None

    def turn(self, orders: Orders, leaves: bool) -> bool:
        """Begin what is asked, or end it where the driver leaves; returns whether it is at work."""
        if self._is_at_work:
            if leaves:
                self._hurry(LEAVES)
        elif not leaves and (asked := requested_jobs.first_of(self._engine, orders, self._name)):
            self._ends, self._keeper = None, None
            # As their files are now. Here, as the flows' loop reads them too, and two at once would disturb each other.
            self._thread = InheritableThread(self._run, args=(asked, catalog.reload()), daemon=True)
            self._thread.start()
        return self._is_at_work

    def end(self) -> None:
        """Return when it can write nothing more, or end the driver."""
        if self._is_at_work:
            self._end(LEAVES)

    @property
    def _is_at_work(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _run(self, job: AskedJob, tables: Catalog) -> None:
        context = self._spark.sparkContext
        context.setLocalProperty("spark.scheduler.pool", TAG)
        context.addJobTag(TAG)
        try:
            if table := job.begin():
                print(f"sluice: driver '{self._name}' begins {job.name} of {table}", flush=True)
                with self._hired(f"{job.kind} {table}", tables) as worker:
                    job.work(worker)
            outcome = job.end
        except Unreachable as error:
            # A backfill stays asked for; a window is left to the job that follows in Airflow.
            self._say(job, error)
            return
        except Exception as error:
            named = failure.of_exception(job.name, error)
            self._say(job, named)
            outcome = job.leave if self._ends == LEAVES else partial(job.fail, self._ends or str(named))
        self._tell(outcome)

    def _say(self, job: AskedJob, error: SluiceError) -> None:
        why = self._ends or error
        print(f"sluice: {job.name} came to no end in this driver: {why}", file=sys.stderr, flush=True)

    @contextmanager
    def _hired(self, name: str, tables: Catalog) -> Iterator[Worker]:
        """With leases and a session of its own; at the end it can write nothing more."""
        spark = self._spark.newSession()
        # Some of Delta asks for the thread's session.
        spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)
        # Another name than the driver's: the locks of its flows tell holders apart.
        holder = Holder.here(f"{self._name}, {name}", self._jvm)
        keeper = LeaseRenewer(self._engine, holder, settings().lease_seconds, partial(driver.halt, self._jvm))
        host = Host(spark, self._engine, keeper, name)
        self._keeper = keeper
        keeper.start()
        try:
            try:
                yield Worker(self._engine, keeper, host, spark, tables, self._end)
            finally:
                driver.stop(host.end, self._jvm)
        finally:
            keeper.stop()

    def _tell(self, outcome: Callable[[], None]) -> None:
        while True:
            try:
                outcome()
                break
            except Unreachable:
                if self._ends == LEAVES:
                    break
                threading.Event().wait(1)

    def _hurry(self, why: str) -> None:
        """It gives up what it waits for, and its Spark jobs fail; between two of them this has to be said again."""
        self._ends = self._ends or why
        if self._keeper:
            self._keeper.close()
        self._spark.sparkContext.cancelJobsWithTag(TAG)

    def _end(self, why: str) -> None:
        """End it, or where that takes too long the driver: others wait for what it holds."""
        thread = self._thread
        assert thread
        for _ in range(END_SECONDS):
            self._hurry(why)
            thread.join(1)
            if not thread.is_alive():
                return
        driver.halt(self._jvm, why)
