"""`jobs/backfill.py` for the tables of benchmarks.in_driver, which no table file declares."""

from datetime import UTC, datetime

from include.catalog import Catalog
from include.engine.jobs import backfill
from include.errors import report
from include.project.ranges import Slice
from include.spec import Bucket, Delta, Flow, Upsert

SOURCE = "bronze.numbers"
# A number is a time in seconds since 1970.
RANGE = Slice(datetime(1970, 1, 1, 0, 1, tzinfo=UTC), datetime(1970, 1, 1, 0, 3, tzinfo=UTC))


def timed(rows):  # type: ignore[no-untyped-def]
    return rows.selectExpr("number", "timestamp_seconds(number) AS time")


def sums(rows):  # type: ignore[no-untyped-def]
    from pyspark.sql import functions as F

    return rows.groupBy("minute").agg(F.count("*").alias("rows"), F.sum("number").alias("total"))


MADE_AGAIN = Flow(
    name="silver.numbers",
    comment="numbers and their times",
    source=Delta(SOURCE),
    schema="number BIGINT, time TIMESTAMP",
    transform=timed,
    time_column="time",
)
BELOW = Flow(
    name="gold.sums",
    comment="their sums",
    source=Delta(MADE_AGAIN.name),
    schema="minute TIMESTAMP, rows BIGINT, total BIGINT",
    transform=sums,
    write=Upsert(keys=("minute",), recompute=Bucket("minute", of="time", unit="minute")),
)
CATALOG = Catalog({table.name: table for table in (MADE_AGAIN, BELOW)})

if __name__ == "__main__":
    report(lambda: backfill.run(MADE_AGAIN, CATALOG, RANGE, "a benchmark", dry_run=False))
