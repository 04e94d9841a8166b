"""`jobs/backfill.py --full` for the tables of a test: python -m tests.support.jobs.full_refresh CHAIN TOPIC"""

import sys
from dataclasses import replace
from types import SimpleNamespace

from include.catalog import Catalog
from include.engine.jobs import backfill
from include.errors import report
from include.project import ranges
from tests.support.flows import Chain


def main() -> None:
    name, topic = sys.argv[1:]
    bronze, *readers = Chain(name, SimpleNamespace(name=topic)).in_slices
    bronze = replace(bronze, reset_allowed=True)
    tables = Catalog({table.name: table for table in (bronze, *readers)})
    backfill.run(bronze, tables, ranges.parse_slice(bronze, None, None, as_a_whole=True), "a test", dry_run=False)


if __name__ == "__main__":
    report(main)
