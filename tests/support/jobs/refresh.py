"""`jobs/refresh.py` for two views of a test: python -m tests.support.jobs.refresh NAME RUN"""

import sys

from include.catalog import Catalog
from include.engine.jobs import refresh
from include.errors import report
from include.spec import Delta, Flow, Replace, Table


def with_row_count(rows):
    """Add the column `of`, the number of all rows, so that a missing row is visible."""
    from pyspark.sql import functions as F

    return rows.crossJoin(rows.agg(F.count("*").alias("of")))


def with_row_count_of_first(rows, first):
    """Add the column `of`, the number of rows in the first view."""
    from pyspark.sql import functions as F

    return rows.crossJoin(first.agg(F.count("*").alias("of")))


def views(name: str) -> tuple[Table, Table]:
    """Two views of the table `silver.<name>` with a column `n`. The second one also reads the first."""
    first = Flow(
        name=f"gold.{name}_a",
        comment="counted",
        source=Delta(f"silver.{name}"),
        schema="n INT COMMENT 'a number', part INT, of BIGINT",
        transform=with_row_count,
        write=Replace(),
        partition_by=("part",),
    )
    second = Table(
        name=f"gold.{name}_b",
        comment="held against the first",
        source={"rows": Delta(f"silver.{name}"), "first": Delta(first.name)},
        schema="n INT, part INT, of BIGINT",
        transform=with_row_count_of_first,
        write=Replace(),
    )
    return first, second


def main() -> None:
    name, run = sys.argv[1:]
    all_views = views(name)
    refresh.run(run, list(all_views), Catalog({view.name: view for view in all_views}))


if __name__ == "__main__":
    report(main)
