"""A driver that ends itself at a commit: python -m tests.support.aimed_kill_job CHAIN TOPIC TABLE before|after

It runs the chain's flows to the end of their sources. At the first commit of a batch to that table it dies by SIGKILL,
its JVM first: `before`, when the data file is there, or `after`, when Spark has not written the batch down yet.
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
    tables = Catalog({each.name: each for each in chain.all})
    catalog.load = catalog.reload = lambda: tables
    commit = Transaction._commit

    def die() -> None:
        os.kill(driver.jvm_pid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def commit_and_die(self: Transaction, *given: object, **named: object) -> None:
        if self.target.name == table and moment == "before":
            die()
        commit(self, *given, **named)
        if self.target.name == table:
            die()

    Transaction._commit = commit_and_die
    driver.run(list(chain.all), once=True)


if __name__ == "__main__":
    report(main)
