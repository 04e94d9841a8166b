"""Turns rows of a source into rows of the table."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.engine import struct_type
from include.engine.batch import data_skipping, parse, parse_avro
from include.engine.batch.transform import apply
from include.engine.tables.read_table import read_table
from include.spec import Avro, Bucket, Delta, Table, Upsert

# Most rows that a batch writes as one file; larger batches use all cores and write several.
ROWS_PER_FILE = 100_000


def apply_transform(rows: DataFrame, table: Table) -> DataFrame:
    """Returns source rows as rows of the table, by its `parse` and `transform`, in the columns of its schema."""
    schema = struct_type.from_ddl(table.schema)
    if table.parse:
        rows = (
            parse_avro.typed(rows, table.parse, schema)
            if isinstance(table.parse, Avro)
            else parse.typed(rows, table.parse, schema)
        )
        rows = parse.strict(rows) if table.parse.fails else rows
    if table.transform:
        rows = apply(rows, table.transform)
    return rows.select(*[F.col(f"`{name}`") for name in schema.fieldNames()])


def apply_steps(rows: DataFrame, table: Table) -> DataFrame:
    """Returns source rows as rows of the last temporary step before the table."""
    for step in table.steps:
        rows = apply_transform(rows, step)
    return rows


def starts(rows: DataFrame, bucket: Bucket) -> DataFrame:
    """Returns the bucket of each row, in column `start`, in seconds since 1970."""
    return rows.select(F.unix_seconds(data_skipping.bucket(bucket.of, bucket.unit)).alias("start"))


def count_by_bucket(starts: DataFrame) -> dict[int | None, int]:
    """Counts the rows of each bucket. starts: column `start`, as `starts` returns it."""
    return {row["start"]: row["count"] for row in starts.groupBy("start").count().collect()}


def recomputed(spark: SparkSession, table: Table, write: Upsert, version: int, condition: str = "true") -> DataFrame:
    """Returns rows of an aggregate, computed from all source rows at a version. condition: of the buckets to
    compute.
    """
    assert isinstance(table.source, Delta)
    return aggregated(read_table(spark, table.source.table, version), table, write, condition)


def aggregated(source: DataFrame, table: Table, write: Upsert, condition: str = "true") -> DataFrame:
    """Returns rows of an aggregate, computed from these rows of its source."""
    source = apply_steps(source, table)
    if bucket := write.recompute:
        source = source.filter(condition).withColumn(bucket.name, data_skipping.bucket(bucket.of, bucket.unit))
    return apply_transform(source, table)


def coalesce_small(rows: DataFrame, count: int) -> DataFrame:
    """Returns small batches in one partition, and so one file; large ones unchanged, so that all cores write."""
    return rows.coalesce(1) if count <= ROWS_PER_FILE else rows
