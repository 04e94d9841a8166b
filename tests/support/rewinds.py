"""Runs rewinds in this process, as `jobs/rewind.py` does."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from include.catalog import Catalog
from include.control.jobs import rewinds, store
from include.control.jobs.rewinds import Rewind
from include.control.lease_renewer import LeaseRenewer
from include.control.leases.process import Holder
from include.control.store import database, job_id
from include.delta.delta_log import DeltaLog
from include.engine.jobs import rewind
from include.engine.jobs.worker import Worker
from include.engine.stream.driver import jvm_pid
from include.engine.stream.host import Host
from include.lake import locations
from include.recovery import rewind_plan
from include.recovery.rewind_plan import RewindPlan
from include.settings import settings
from include.spec import Table


class Rewinds:
    """tables: the complete catalog, in graph order."""

    def __init__(self, spark: SparkSession, *tables: Table) -> None:
        self.spark, self.tables = spark, Catalog({table.name: table for table in tables})
        self.engine = database.connect(settings().control_url)

    def plan(self, table: Table, moment: str) -> RewindPlan:
        return rewind_plan.plan(self.engine, table, self.tables, moment)

    def run(self, table: Table, moment: str) -> Rewind | None:
        """Plan and apply a rewind; None if there is nothing to undo."""
        plan = self.plan(table, moment)
        rewind.require_possible(plan)
        if not plan.steps:
            return None
        new_rewind = rewinds.plan(self.engine, table.name, moment, plan.cut, plan.views, "a test", "a bug")
        return self.complete(new_rewind.number)

    def complete(self, number: int) -> Rewind:
        """Complete an unfinished rewind."""
        with self.worker() as worker:
            rewind.RewindJob(self.engine, job_id.rewind(number)).work(worker)
        return store.get(self.engine, Rewind, number)

    @contextmanager
    def worker(self) -> Iterator[Worker]:
        lease_renewer = LeaseRenewer(self.engine, Holder.here("rewind", jvm_pid()), 60, lambda reason: os.abort())
        lease_renewer.start()
        try:
            host = Host(self.spark, self.engine, lease_renewer, "rewind")
            yield Worker(self.engine, lease_renewer, host, self.spark, self.tables, lambda reason: os.abort())
        finally:
            lease_renewer.stop()


def moment_of(table: Table, version: int | None = None) -> str:
    """The commit time of this version, or of the newest, in ISO 8601."""
    log = DeltaLog(locations.table_path(table.name))
    seconds = log.commit(log.newest if version is None else version).timestamp
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
