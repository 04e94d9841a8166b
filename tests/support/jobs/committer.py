"""A process that commits to Delta tables as it is told: python -m tests.support.jobs.committer NAME

It prints `ready`. Each line of its input is a race, `URL COMMITS locked|free`: it commits so many made-up files to the
table, `locked` under the table's lock, `free` without it. For each commit it prints the file and the version that
Delta reported, and then `done`.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from include.catalog import Catalog
from include.control import lease_renewer
from include.control.lease_renewer import LeaseRenewer
from include.control.leases.lock import LockRequest
from include.control.leases.process import Holder
from include.control.store import database
from include.engine.fast_path.transaction import internals
from include.engine.session import open_session
from include.engine.stream.driver import jvm_pid
from include.errors import report
from include.settings import settings
from tests.support.delta_log import added


class Committer:
    def __init__(self, name: str) -> None:
        self.name = name
        self.spark = open_session(name, Catalog({}))
        self.java = internals(self.spark.sparkContext)
        # A waiting writer enters as soon as the other one leaves, so that they take turns at every version.
        lease_renewer.GATE_SECONDS = 0.05
        engine = database.connect(settings().control_url)
        self.leases = LeaseRenewer(engine, Holder.here(name, jvm_pid()), 60, lambda reason: os.abort())
        self.leases.take([name])
        self.leases.start()

    def race(self, url: str, commits: int, is_locked: bool) -> None:
        log = self.java.delta_log.forTable(self.spark._jsparkSession, url)
        for number in range(commits):
            file = f"{self.name}-{number}"
            with self.turn(url, is_locked):
                print(file, self.commit(log, file), flush=True)
        print("done", flush=True)

    def commit(self, log: Any, file: str) -> int:
        java = self.java
        snapshot = log.update(False, java.none, java.none)
        transaction = log.startTransaction(java.none, java.some(snapshot))
        actions = java.array_list()
        actions.add(java.action.fromJson(json.dumps(added(file))))
        operation = java.write(java.append_mode, *[java.none] * 8)
        return int(transaction.commit(java.to_seq(actions), operation))

    @contextmanager
    def turn(self, url: str, is_locked: bool) -> Iterator[None]:
        if not is_locked:
            yield
            return
        assert self.leases.enter(LockRequest(self.name, url, alone=True), lambda: True)
        try:
            yield
        finally:
            self.leases.leave(self.name)


def main() -> None:
    committer = Committer(sys.argv[1])
    print("ready", flush=True)
    for line in sys.stdin:
        url, commits, kind = line.split()
        committer.race(url, int(commits), kind == "locked")
    committer.leases.stop()


if __name__ == "__main__":
    report(main)
