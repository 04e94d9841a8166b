"""Backfills in this process, as `jobs/backfill.py` does them in its own."""

import os
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from include.catalog import Catalog
from include.control.jobs import backfills
from include.control.jobs.backfills import Backfill
from include.control.lease_renewer import LeaseRenewer
from include.control.process import Holder
from include.control.store import database
from include.engine.jobs import backfill
from include.engine.jobs.window import Worker
from include.engine.stream.driver import jvm_pid
from include.engine.stream.host import Host
from include.settings import settings
from include.spec import Table
from include.validation import slices


class Killed(BaseException):
    """What no `except Exception` sees, as nobody in a process sees its SIGKILL."""


@dataclass
class Backfills:
    """tables: all there are, in graph order."""

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
        """begin, end: in seconds of 1970. Returns what was done, the tables below it included, newest first."""
        texts = [None if one is None else datetime.fromtimestamp(one, UTC).isoformat() for one in (begin, end)]
        asked = backfills.begin(self.engine, table.name, slices.of(table, *texts, as_a_whole=as_a_whole), "a test")
        keeper = LeaseRenewer(self.engine, Holder.here("backfill", jvm_pid()), 60, lambda reason: os.abort())
        keeper.start()
        try:
            host = Host(self.spark, self.engine, keeper, "backfill")
            tables = Catalog({one.name: one for one in self.tables})
            backfill.work(
                Worker(self.engine, keeper, host, self.spark, tables, lambda reason: os.abort()),
                replace(asked, alone=alone),
            )
        finally:
            keeper.stop()
        return [one for one in backfills.newest(self.engine) if one.root == asked.root]
