"""`jobs/backfill.py` for the tables of a test: python -m tests.support.jobs.backfill CHAIN TOPIC TABLE FROM TO"""

import sys
from types import SimpleNamespace

from include.catalog import Catalog
from include.engine.jobs import backfill
from include.errors import report
from include.project import ranges
from tests.support.flows import Chain


def main() -> None:
    name, topic, table_name, begin, end = sys.argv[1:]
    tables = Catalog({table.name: table for table in Chain(name, SimpleNamespace(name=topic)).in_slices})
    table = tables.table(table_name)
    backfill.run(table, tables, ranges.parse_slice(table, begin, end), "a test", dry_run=False)


if __name__ == "__main__":
    report(main)
