"""A driver that kills itself at a commit: python -m tests.support.jobs.aimed_kill CHAIN TOPIC TABLE before|after

The driver runs the flows of the chain to the end of their sources. At the first commit of a batch to TABLE, the driver
sends SIGKILL to its JVM and to itself. `before`: the data file is written, but not committed. `after`: the batch is
committed, but Spark has not written its commit log.
"""

import os
import signal
import sys
from types import SimpleNamespace

from include import catalog
from include.catalog import Catalog
from include.engine.fast_path.transaction import Transaction
from include.engine.stream import driver
from include.errors import report
from tests.support.flows import Chain


def main() -> None:
    name, topic, table, moment = sys.argv[1:]
    chain = Chain(name, SimpleNamespace(name=topic))
    flows = [*chain.all, chain.latest]
    tables = Catalog({flow.name: flow for flow in flows})
    catalog.load = catalog.reload = lambda: tables
    kill_at_commit(table, moment)
    driver.run(flows, once=True)


def kill_at_commit(table: str, moment: str) -> None:
    """Make this process kill its JVM and itself at the first commit to the table. moment: `before` or `after` it."""
    commit = Transaction._commit

    def die() -> None:
        os.kill(driver.jvm_pid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def commit_and_die(self: Transaction, *arguments: object, **options: object) -> None:
        if self.target.name == table and moment == "before":
            die()
        commit(self, *arguments, **options)
        if self.target.name == table:
            die()

    Transaction._commit = commit_and_die


if __name__ == "__main__":
    report(main)
