"""`jobs/rewind.py` for the tables of a test: python -m tests.support.jobs.rewind CHAIN TOPIC MOMENT"""

import sys
from types import SimpleNamespace

from include.catalog import Catalog
from include.control.jobs import rewinds
from include.control.store import database
from include.engine.jobs import rewind
from include.errors import report
from include.settings import settings
from tests.support.flows import Chain


def main() -> None:
    name, topic, moment = sys.argv[1:]
    tables = Catalog({table.name: table for table in Chain(name, SimpleNamespace(name=topic)).in_slices})
    silver = tables.table(f"silver.{name}")
    unfinished = rewinds.unfinished(database.connect(settings().control_url), [silver.name])
    if unfinished:
        rewind.resume(unfinished[0].number, tables)
    else:
        rewind.run(silver, tables, moment, "a test", "a bug", dry_run=False)


if __name__ == "__main__":
    report(main)
