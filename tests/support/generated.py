"""Generated batches of every write mode: few different values, so that rows meet."""

import random
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from include.lake import locations
from include.rules import not_null, unique
from include.spec import Append, Bucket, Delta, Expect, Flow, Lookup, Table, Upsert, Watermark

COLUMNS = "id INT, code STRING, ratio DOUBLE, price DECIMAL(12,3), at TIMESTAMP, day DATE, seq INT, op STRING"
SCHEMA = "id INT, code STRING, ratio DOUBLE, price DECIMAL(12,3), at TIMESTAMP, day DATE, seq INT"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SEED = time.time_ns() % 10**9
RULES = (
    Expect("positive", "price > 0 OR price IS NULL", "quarantine"),
    Expect("small", "id < 9", "drop"),
    Expect("known", "code <> 'z'", "warn"),
)


class Generator:
    """Rows with few different values, so that they meet: NULLs, ties, NaN, -0.0, late rows, deletes, duplicates."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rows: list[tuple] = []

    def batch(self, number: int) -> list[tuple]:
        return self._batch(number, self.random.choice((0, 1, 9, 30)) if number else 20)

    def full_batch(self, number: int) -> list[tuple]:
        return self._batch(number, 20)

    def _batch(self, number: int, size: int) -> list[tuple]:
        rows = [self.row(number) for _ in range(size)]
        # What arrived before arrives again, in part.
        again = self.random.sample(self.rows, min(len(self.rows), self.random.randint(0, 5)))
        rows += again + self.random.sample(rows, min(len(rows), self.random.randint(0, 3)))
        # A write without rows makes no version of a source, and thus no batch.
        rows = rows or [self.row(number)]
        self.random.shuffle(rows)
        self.rows += rows
        return rows

    def row(self, number: int) -> tuple:
        pick = self.random.choice
        seconds = pick((0, 30, 61, 90.000001, 240, 3_600)) + 60 * number - pick((0, 0, 0, 600, 86_400))
        at = NOON + timedelta(seconds=seconds)
        return (
            pick((None, *range(10))),
            pick((None, "", "a", "b", "z", "é", "\U0001f600", "a ")),
            pick((None, 0.0, -0.0, 1.5, -1.5, float("nan"), float("inf"))),
            pick((None, Decimal("0.000"), Decimal("1.500"), Decimal("-1.500"), Decimal("999999999.999"))),
            pick((None, at, at, at)),
            pick((None, at.date())),
            pick((None, *range(12), *range(12))),
            # The first batch truncates nothing, so the fast path takes it.
            pick((None, "u", "u", "u", "u", "d", "t" if number else "u")),
        )


def table(name: str, write: Any, **fields: Any) -> Table:
    known = {"comment": "x", "source": Delta(f"bronze.{name}"), "schema": SCHEMA, "expect": RULES}
    return Flow(name=f"silver.{name}", write=write, **{**known, **fields})


def titles(name: str) -> Lookup:
    keys = {"code": "code", "day": "day"}
    return Lookup(f"silver.{name}_titles", on=keys, columns=("title",), refresh_seconds=1e-6)


def store_titles(spark: SparkSession, name: str, rows: list[tuple]) -> None:
    """Replaces the looked-up table by one row of each key that the batch has, but for one."""
    keys = sorted({(row[1], row[5]) for row in rows}, key=repr)[1:]
    titles = [(code, day, f"{code} of {day}") for code, day in keys]
    frame = spark.createDataFrame(titles, "code STRING, day DATE, title STRING").coalesce(1)
    frame.write.format("delta").mode("overwrite").save(str(locations.table_path(name)))


def _per_bucket(rows):
    return rows.groupBy("minute", "code").agg(
        F.count("*").alias("n"),
        F.sum("price").alias("price"),
        F.max(F.col("ratio") + 0.0).alias("ratio"),
        F.min("at").alias("at"),
    )


def _totals(rows):
    return rows.groupBy("code").agg(F.count("*").alias("n"), F.sum("price").alias("price"))


MERGE = Upsert(("id",), sequence_by="seq", deletes="op = 'd'")
MODES: dict[str, Any] = {
    "append": lambda name: table(name, Append()),
    "unique": lambda name: table(name, Append(unique=("id", "at"), first_by=("seq",))),
    "unique without order": lambda name: table(name, Append(unique=("code", "at"))),
    "watermark": lambda name: table(name, Append(watermark=Watermark("at", 5))),
    "unique with watermark": lambda name: table(
        name, Append(unique=("id",), first_by=("seq",), watermark=Watermark("at", 2, late="drop"))
    ),
    "rule unique": lambda name: table(name, Append(), expect=(*RULES, unique("id", "seq"), not_null("code"))),
    "merge": lambda name: table(name, MERGE),
    "merge with watermark": lambda name: table(name, replace(MERGE, watermark=Watermark("at", 5))),
    "merge of two keys": lambda name: table(name, replace(MERGE, keys=("code", "day"), truncates="op = 't'")),
    "partial": lambda name: table(name, replace(MERGE, partial=True)),
    "history": lambda name: table(name, replace(MERGE, scd=2, tracked=("code", "ratio"))),
    "history with truncates": lambda name: table(name, replace(MERGE, scd=2, truncates="op = 't'")),
    "aggregate": lambda name: table(
        name,
        Upsert(("minute", "code"), recompute=Bucket("minute", of="at", unit="minute")),
        schema="minute TIMESTAMP, code STRING, n BIGINT, price DECIMAL(22,3), ratio DOUBLE, at TIMESTAMP",
        transform=_per_bucket,
        expect=(),
    ),
    "aggregate within reach": lambda name: table(
        name,
        Upsert(("minute", "code"), recompute=Bucket("minute", of="at", unit="minute"), reach_minutes=1),
        schema="minute TIMESTAMP, code STRING, n BIGINT, price DECIMAL(22,3), ratio DOUBLE, at TIMESTAMP",
        transform=_per_bucket,
        expect=(),
    ),
    "totals": lambda name: table(
        name, Upsert(("code",)), schema="code STRING, n BIGINT, price DECIMAL(22,3)", transform=_totals, expect=()
    ),
    "lookup": lambda name: table(name, Append(), schema=f"{SCHEMA}, title STRING", lookups=(titles(name),)),
    "lookup in a merge": lambda name: table(name, MERGE, schema=f"{SCHEMA}, title STRING", lookups=(titles(name),)),
}
