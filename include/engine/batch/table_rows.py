"""Turns rows of a source into rows of the table."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.engine import struct_type
from include.engine.batch import data_skipping, parse, parse_avro, parse_debezium
from include.engine.batch.merge_changes import DELETED, TRUNCATES, flags
from include.engine.batch.transform import apply
from include.engine.python import limits
from include.engine.tables.read_table import read_table
from include.spec import Avro, Bucket, Debezium, Delta, Parse, Table, Upsert, ddl

# Most rows that a batch writes as one file; larger batches use all cores and write several.
ROWS_PER_FILE = 100_000


def apply_transform(rows: DataFrame, table: Table) -> DataFrame:
    """Returns source rows as rows of the table, by its `parse` and `transform`, in the columns of its schema.

    Changes of keys have the columns of `names_of_changes`.
    """
    schema = struct_type.from_ddl(table.schema)
    if table.parse:
        rows = _typed(rows, table, table.parse, schema)
        rows = parse.strict(rows) if table.parse.fails else rows
    if table.transform:
        limits.limit_memory(rows.sparkSession, table)
        rows = apply(rows, table.transform)
    columns = [F.col(f"`{name}`") for name in names_of_rows(table)]
    if isinstance(table.write, Upsert) and table.write.sequence_by:
        conditions = {DELETED: table.write.deletes, TRUNCATES: table.write.truncates}
        values = {name: F.coalesce(F.expr(conditions[name] or "false"), F.lit(False)) for name in flags(table.write)}
        if isinstance(table.parse, Debezium) and "_op" in rows.columns:
            values[DELETED] = F.when(F.col("_op") != parse_debezium.TOMBSTONE, values[DELETED])
        columns += [value.alias(name) for name, value in values.items()]
    return rows.select(*columns)


def _typed(rows: DataFrame, table: Table, declared: Parse, schema: StructType) -> DataFrame:
    match declared:
        case Avro():
            return parse_avro.typed(rows, declared, schema)
        case Debezium():
            is_partial = isinstance(table.write, Upsert) and table.write.partial
            return parse_debezium.typed(rows, declared, schema, is_partial)
        case _:
            return parse.typed(rows, declared, schema)


def names_of_rows(table: Table) -> list[str]:
    """Returns the columns that the transform makes: those of the table, without those that a merge computes."""
    computed = ddl.columns(table.computed_schema) if table.computed_schema else []
    return [name for name in struct_type.from_ddl(table.schema).fieldNames() if name not in computed]


def names_of_changes(table: Table) -> list[str]:
    """Returns the columns of a batch: those of `names_of_rows`, and for changes of keys what each change does."""
    return [*names_of_rows(table), *(flags(table.write) if isinstance(table.write, Upsert) else ())]


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
