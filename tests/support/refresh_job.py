"""`jobs/refresh.py` for two views of a test's own: python -m tests.support.refresh_job NAME RUN"""

import sys

from include.catalog import Catalog
from include.engine.jobs import refresh
from include.errors import report
from include.spec import Delta, Replace, Table


def counted(rows):
    """Each row tells how many there are, so that one that is missing shows."""
    from pyspark.sql import functions as F

    return rows.crossJoin(rows.agg(F.count("*").alias("of")))


def of_both(rows, first):
    """The rows of the source, with how many of them the first view holds."""
    from pyspark.sql import functions as F

    return rows.crossJoin(first.agg(F.count("*").alias("of")))


def views(name: str) -> tuple[Table, Table]:
    """Of the table `silver.<name>` with a column `n`; the second reads the first, too."""
    first = Table(
        name=f"gold.{name}_a",
        comment="counted",
        source=Delta(f"silver.{name}"),
        schema="n INT COMMENT 'a number', part INT, of BIGINT",
        transform=counted,
        write=Replace(),
        partition_by=("part",),
    )
    second = Table(
        name=f"gold.{name}_b",
        comment="held against the first",
        source={"rows": Delta(f"silver.{name}"), "first": Delta(first.name)},
        schema="n INT, part INT, of BIGINT",
        transform=of_both,
        write=Replace(),
    )
    return first, second


def main() -> None:
    name, run = sys.argv[1:]
    found = views(name)
    refresh.run(run, list(found), Catalog({view.name: view for view in found}))


if __name__ == "__main__":
    report(main)
