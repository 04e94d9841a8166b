"""Runs backfills in this process, as `jobs/backfill.py` does."""

import os
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from include.catalog import Catalog
from include.control.jobs import backfills, store
from include.control.jobs.backfills import Backfill
from include.control.lease_renewer import LeaseRenewer
from include.control.leases.process import Holder
from include.control.store import database, job_id
from include.engine.jobs.backfill import BackfillJob
from include.engine.jobs.worker import Worker
from include.engine.stream.driver import jvm_pid
from include.engine.stream.host import Host
from include.project import ranges
from include.settings import settings
from include.spec import Table


class Killed(BaseException):
    """Simulates SIGKILL: no `except Exception` catches it."""


@dataclass
class Backfills:
    """tables: the complete catalog, in graph order."""

    spark: SparkSession
    tables: tuple[Table, ...]

    def __post_init__(self) -> None:
        self.engine = database.connect(settings().control_url)

    def run(
        self,
        table: Table,
        begin: int | None = None,
        end: int | None = None,
        as_a_whole: bool = False,
        alone: bool = False,
    ) -> list[Backfill]:
        """Backfill a range (seconds since 1970). Returns the backfills of the table and its readers, newest first."""
        times = [
            None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat() for seconds in (begin, end)
        ]
        new_backfill = backfills.begin(
            self.engine, table.name, ranges.parse_slice(table, *times, as_a_whole=as_a_whole), "a test"
        )
        lease_renewer = LeaseRenewer(self.engine, Holder.here("backfill", jvm_pid()), 60, lambda reason: os.abort())
        lease_renewer.start()
        try:
            host = Host(self.spark, self.engine, lease_renewer, "backfill")
            tables = Catalog({member.name: member for member in self.tables})
            worker = Worker(self.engine, lease_renewer, host, self.spark, tables, lambda reason: os.abort())
            BackfillJob(self.engine, job_id.backfill(new_backfill.root), new_backfill.number if alone else None).work(
                worker
            )
        finally:
            lease_renewer.stop()
        return [entry for entry in store.newest(self.engine, Backfill) if entry.root == new_backfill.root]
