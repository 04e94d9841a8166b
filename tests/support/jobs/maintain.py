"""`jobs/maintain.py` for the tables of a test: python -m tests.support.jobs.maintain CHAIN TOPIC TABLE"""

import sys
from types import SimpleNamespace

from include.catalog import Catalog
from include.engine.jobs import window
from include.errors import report
from tests.support.flows import Chain


def main() -> None:
    name, topic, flow_name = sys.argv[1:]
    tables = Catalog({table.name: table for table in Chain(name, SimpleNamespace(name=topic)).in_windows})
    window.run(tables.flow(flow_name), tables)


if __name__ == "__main__":
    report(main)
