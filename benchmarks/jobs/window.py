"""`jobs/maintain.py` for the tables of benchmarks.windows, which no table file declares."""

from include.catalog import Catalog
from include.engine.jobs import window
from include.errors import report
from include.spec import Delta, Flow, Maintenance, Table

SOURCE = "bronze.numbers"
SCHEMA = "number BIGINT, time TIMESTAMP, value INT, payload BINARY"


def _reader(name: str) -> Table:
    # The values are so small that every window finds work.
    policy = Maintenance(target_file_mb=0.05, time_travel_hours=0.001)
    return Flow(
        name=name, comment="as it came", source=Delta(SOURCE), schema=SCHEMA, interval_seconds=1, maintain=policy
    )


WATCHED, OTHER = _reader("silver.watched"), _reader("silver.other")
CATALOG = Catalog({table.name: table for table in (WATCHED, OTHER)})

if __name__ == "__main__":
    report(lambda: window.run(WATCHED, CATALOG))
