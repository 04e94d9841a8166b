"""`jobs/erase.py` for the table of benchmarks.erasure, which no table file declares: erase.py NUMBER"""

import sys

from include.catalog import Catalog
from include.engine.jobs import erase
from include.errors import report
from include.spec import Flow, Kafka

PEOPLE = Flow(
    name="bronze.people",
    comment="events of persons",
    source=Kafka("people"),
    schema="person STRING, payload STRING",
    subject="person",
)
CATALOG = Catalog({PEOPLE.name: PEOPLE})

if __name__ == "__main__":
    report(lambda: erase.resume(int(sys.argv[1]), CATALOG, approved_by="a benchmark"))
