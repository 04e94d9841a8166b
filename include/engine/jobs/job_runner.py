"""Runs jobs inside a driver that already runs, next to its flows. Rows of the control database request them.

Each job has its own thread, Spark session and leases. Flows therefore wait for it at their gates as they wait for a job
of another process, and they go on when it fails.
"""

import importlib
import pkgutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from pyspark import InheritableThread
from pyspark.sql import SparkSession
from sqlalchemy import Engine

from include import catalog, logs
from include.catalog import Catalog
from include.control.flows import queue
from include.control.flows.orders import Orders
from include.control.jobs import store
from include.control.jobs.job import Job
from include.control.lease_renewer import LeaseRenewer
from include.control.leases.process import Holder
from include.control.store import database
from include.control.store.job_id import JobId
from include.engine import failure, jobs
from include.engine.jobs.worker import Worker
from include.engine.session import jvm_of
from include.engine.stream import driver
from include.engine.stream.host import Host
from include.errors import SluiceError, Unreachable, UsageError
from include.settings import settings
from include.spec import Table

# Tag of the job's Spark jobs, by which they can be cancelled, and name of their scheduler pool.
TAG = "sluice-job"
DRIVER_ENDS = "its driver ends: the next one goes on with it"
# How long the job's Spark jobs may take to end.
END_SECONDS = 60


def job_of(engine: Engine, id_: JobId) -> Job[Worker, Any]:
    """Returns the requested job, of whatever kind a module of this folder declares. Raises UsageError if none does."""
    for module in pkgutil.iter_modules(jobs.__path__, f"{jobs.__name__}."):
        importlib.import_module(module.name)
    if id_.kind not in Job.OF_KIND:
        raise UsageError(f"{id_}: no file in include/engine/jobs declares this kind: restore it, or give the job up")
    return Job.OF_KIND[id_.kind](engine, id_)


class JobRunner:
    """Runs the requested jobs of one driver, one at a time."""

    def __init__(self, spark: SparkSession, engine: Engine, name: str) -> None:
        self._spark = spark
        self._engine = engine
        self._name = name
        self._jvm = driver.jvm_pid()
        self._thread: threading.Thread | None = None
        self._renewer: LeaseRenewer | None = None
        # Why the current job must end early, and has failed; None if it need not.
        self._overrun: str | None = None
        self._driver_ends = False

    def turn(self, orders: Orders, is_ending: bool) -> bool:
        """Starts the next requested job, or ends the current one if the driver ends. Returns whether a job runs."""
        if self._is_at_work:
            if is_ending:
                self._driver_ends = True
                self._cancel()
        elif not is_ending and orders.job:
            self._overrun, self._renewer = None, None
            # The catalog is reloaded in this thread: the flows' loop reloads it too, and two concurrent reloads
            # conflict.
            self._thread = InheritableThread(self._run, args=(orders.job, catalog.reload()), daemon=True)
            self._thread.start()
        return self._is_at_work

    def end(self) -> None:
        """Ends the current job; returns when it can no longer write, or halts the driver."""
        if self._is_at_work:
            self._driver_ends = True
            self._wait_for_end(DRIVER_ENDS)

    @property
    def _is_at_work(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _run(self, requested: JobId, tables: Catalog) -> None:
        try:
            job = job_of(self._engine, requested)
        except UsageError as error:
            self._log_failure(requested, error)
            self._record(partial(store.fail_request, self._engine, requested, str(error)))
            return
        context = self._spark.sparkContext
        context.setLocalProperty("spark.scheduler.pool", TAG)
        context.addJobTag(TAG)
        declared: Table | None = None
        try:
            if job.claim():
                table = job.stored().table
                declared = tables.tables.get(table)
                logs.info(f"driver '{self._name}' begins {requested} of {table}")
                with self._worker_for(f"{requested.kind} {table}", tables) as worker:
                    job.work(worker)
            record_result = partial(queue.withdraw, self._engine, requested)
        except Unreachable as error:
            # The job stays requested.
            self._log_failure(requested, error)
            return
        except Exception as error:
            job_error = failure.of_exception(str(requested), error, declared)
            self._log_failure(requested, job_error)
            record_result = partial(job.fail, self._overrun or str(job_error))
            if self._driver_ends and not self._overrun:
                record_result = partial(queue.hand_back, self._engine, requested)
        self._record(record_result)

    def _log_failure(self, job: JobId, error: SluiceError) -> None:
        reason = self._overrun or (DRIVER_ENDS if self._driver_ends else error)
        logs.error(f"{job} did not finish in this driver: {reason}")

    @contextmanager
    def _worker_for(self, name: str, tables: Catalog) -> Iterator[Worker]:
        """Yields a worker with its own session and leases. On exit it can no longer write."""
        spark = self._spark.newSession()
        # Parts of Delta use the active session of the thread.
        jvm_of(spark).SparkSession.setActiveSession(spark._jsparkSession)
        # Locks tell holders apart by name, so this one differs from the holder of the driver's flows.
        holder = Holder.here(f"{self._name}, {name}", self._jvm)
        renewer = LeaseRenewer(self._engine, holder, settings().lease_seconds, partial(driver.halt, self._jvm))
        host = Host(spark, self._engine, renewer, name)
        self._renewer = renewer
        renewer.start()
        try:
            try:
                yield Worker(self._engine, renewer, host, spark, tables, self._end)
            finally:
                driver.stop(host.end, self._jvm)
        finally:
            renewer.stop()

    def _record(self, record_result: Callable[[], None]) -> None:
        """Records the result; retries while the control database is unreachable, unless the driver ends."""
        database.retry_while_unreachable(record_result, lambda: self._driver_ends)

    def _cancel(self) -> None:
        """Stops waiting for locks and cancels running Spark jobs. A job that starts later needs another call."""
        if self._renewer:
            self._renewer.close()
        self._spark.sparkContext.cancelJobsWithTag(TAG)

    def _end(self, reason: str) -> None:
        """Ends the job as failed, unless the driver ends anyway."""
        if not self._driver_ends:
            self._overrun = self._overrun or reason
        self._wait_for_end(reason)

    def _wait_for_end(self, reason: str) -> None:
        """Ends the job, or the driver if that takes too long: other processes wait for the job's leases."""
        thread = self._thread
        assert thread
        for _ in range(END_SECONDS):
            self._cancel()
            thread.join(1)
            if not thread.is_alive():
                return
        driver.halt(self._jvm, reason)
