"""`jobs/maintain.py` for a test's own tables: python -m tests.support.maintain_job CHAIN TOPIC TABLE"""

import sys
from types import SimpleNamespace

from include.catalog import Catalog
from include.engine.jobs import window
from include.errors import report
from tests.support.flows import Chain


def main() -> None:
    name, topic, wanted = sys.argv[1:]
    tables = Catalog({table.name: table for table in Chain(name, SimpleNamespace(name=topic)).in_windows})
    window.run(tables.flow(wanted), tables)


if __name__ == "__main__":
    report(main)
