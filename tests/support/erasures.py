"""Runs erasures in this process, as `jobs/erase.py` does."""

import json
import os
from collections import Counter

from pyspark.sql import SparkSession

from include.catalog import Catalog
from include.control import suppression
from include.control.jobs import store
from include.control.jobs.store import StoredJob
from include.control.lease_renewer import LeaseRenewer
from include.control.leases.process import Holder
from include.control.store import database
from include.control.store.schema import suppressions
from include.engine.jobs.erase import EraseJob
from include.engine.jobs.worker import Worker
from include.engine.stream.driver import jvm_pid
from include.engine.stream.host import Host
from include.erasure import requests, scan
from include.erasure.requests import Request
from include.lake import locations
from include.settings import settings
from include.spec import Table
from tests.support.flows import rows_of


class Erasure:
    """An erasure as `jobs/erase.py` does it."""

    def __init__(self, spark: SparkSession, tables: Catalog, subject: str) -> None:
        self.engine = database.connect(settings().control_url)
        self._spark, self.tables, self.request = spark, tables, Request((subject,))

    def plan(self) -> StoredJob:
        return requests.plan(self.engine, self.tables, self.request, "eve", "she asked for it")

    def work(self, number: int) -> None:
        renewer = LeaseRenewer(self.engine, Holder.here("erase", jvm_pid()), 60, lambda reason: os.abort())
        renewer.start()
        try:
            host = Host(self._spark, self.engine, renewer, "erase")
            worker = Worker(self.engine, renewer, host, self._spark, self.tables, lambda reason: os.abort())
            job = store.get(self.engine, StoredJob, number, requests.KIND)
            EraseJob(self.engine, job.id).work(worker)
        finally:
            renewer.stop()

    def approve(self, job: StoredJob) -> None:
        store.approve(self.engine, job, "bob")

    def stored(self, number: int) -> StoredJob:
        return store.get(self.engine, StoredJob, number, requests.KIND)

    def hits(self) -> Counter[str]:
        return scan.scan(self.request.needles, self.tables).hits

    def complete(self) -> StoredJob:
        """Plans, approves and does it."""
        job = self.plan()
        self.approve(job)
        self.work(job.number)
        return self.stored(job.number)

    def forget(self) -> None:
        """Empties the suppression list, which all tests share."""
        with database.transaction(self.engine) as connection:
            connection.execute(suppressions.delete())
        suppression.key_file().unlink(missing_ok=True)


def contents(table: Table) -> dict[str, Counter[str]]:
    """How often each row is in the table and in its quarantine."""
    names = [name for name in (table.name, table.quarantine) if locations.is_stored(name)]
    return {name: Counter(json.dumps(row, default=str, sort_keys=True) for row in rows_of(name)) for name in names}


def without(subject: str, before: dict[str, Counter[str]]) -> dict[str, Counter[str]]:
    return {
        name: Counter({row: count for row, count in found.items() if json.loads(row)["person"] != subject})
        for name, found in before.items()
    }
