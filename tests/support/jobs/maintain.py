"""`jobs/maintain.py` for the tables of a test: python -m tests.support.jobs.maintain CHAIN TOPIC TABLE [before|after]

With a moment, the job kills its JVM and itself `before` or `after` the commit of a compaction by Arrow.
"""

import sys
from types import SimpleNamespace

from include.catalog import Catalog
from include.engine.jobs import window
from include.errors import report
from tests.support.flows import Chain
from tests.support.jobs.aimed_kill import kill_at_commit


def main() -> None:
    name, topic, flow_name, *moments = sys.argv[1:]
    for moment in moments:
        kill_at_commit(flow_name, moment)
    tables = Catalog({table.name: table for table in Chain(name, SimpleNamespace(name=topic)).in_windows})
    window.run(tables.flow(flow_name), tables)


if __name__ == "__main__":
    report(main)
