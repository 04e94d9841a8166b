"""Tries rows of a source again that a flow has quarantined because no row could be made of them."""

from functools import partial, reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.engine import struct_type
from include.engine.batch import poison, quality, storable, table_rows
from include.engine.tables import commit
from include.engine.tables.read_table import read_table
from include.flows import resume_position
from include.rules import FAILED
from include.spec import CHANGE_SCHEMA, Delta, Kafka, Table
from include.spec.origin import FAILED_RECORD

# What JSON has in place of bytes that are no text.
REPLACED = "\N{REPLACEMENT CHARACTER}"


def retried(spark: SparkSession, table: Table, stored_rows: DataFrame, is_committed: Column) -> DataFrame | None:
    """Returns the rows of a quarantine with those rows in place of the failed ones that can be made of these today.

    The new ones have the newest batch of their flow, and in `_rules` what they break today, or else that they failed.
    Returns None if no row can be made of any of them. Only what JSON shows exactly is tried.
    """
    if FAILED_RECORD not in stored_rows.columns:
        return None
    is_failed = F.array_contains(quality.RULES, FAILED) & F.col(FAILED_RECORD).isNotNull() & is_committed
    failed_rows = stored_rows.filter(is_failed)
    made = {flow.flow: rows for flow in table.flows if (rows := _retried_of_flow(spark, flow, failed_rows))}
    if not made:
        return None
    for flow, (_, records) in made.items():
        is_made = is_failed & (F.col("_flow") == flow) & F.col(FAILED_RECORD).isin(records)
        stored_rows = stored_rows.filter(~F.coalesce(is_made, F.lit(False)))
    parts = [stored_rows, *(rows for rows, _ in made.values())]
    return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), parts)


def _retried_of_flow(spark: SparkSession, flow: Table, failed_rows: DataFrame) -> tuple[DataFrame, list[str]] | None:
    """Returns rows of the quarantine for the failed rows that pass today, and these as JSON."""
    last_commit = resume_position.last_commit_metadata(flow)
    texts = failed_rows.filter(F.col("_flow") == flow.flow).select(FAILED_RECORD)
    if last_commit is None or texts.isEmpty():
        return None
    schema = _source_schema(spark, flow)
    source = texts.select(FAILED_RECORD, F.from_json(FAILED_RECORD, schema, table_rows.JSON_TIMES).alias("_row"))
    is_exact = table_rows.record([f"_row`.`{name}" for name in schema.fieldNames()]) == F.col(FAILED_RECORD)
    source = source.filter(is_exact & ~F.contains(FAILED_RECORD, F.lit(REPLACED))).select("_row.*")

    def made(rows: DataFrame) -> DataFrame:
        rows = table_rows.apply_transform(table_rows.apply_steps(rows, flow), flow)
        return quality.with_violations(rows, storable.rules_of(flow), flow)

    with poison.persisted(source) as rows:

        def error_of(begin: int, end: int) -> Exception | None:
            return poison.error_of(lambda: made(rows.part(begin, end)).write.format("noop").mode("overwrite").save())

        error = error_of(0, rows.count) if rows.count else None
        search = poison.search(rows.count, error_of, error, has_passed=True) if error else poison.Search()
        failing = {row.position for row in search.found}
        passing = [position for position in range(rows.count) if position not in failing]
        if search.is_over or not passing:
            return None
        result = made(rows.without(failing))
        is_good = F.size(quality.RULES) == 0
        result = result.withColumn(
            quality.RULES, F.when(is_good, F.array(F.lit(FAILED))).otherwise(F.col(quality.RULES))
        )
        return commit.with_batch_columns(result, last_commit).localCheckpoint(), rows.texts(passing)


def _source_schema(spark: SparkSession, flow: Table) -> StructType:
    source = flow.source
    if isinstance(source, Kafka):
        return struct_type.from_ddl(source.schema)
    assert isinstance(source, Delta), "unreadable files are no failed rows"
    schema = read_table(spark, source.table).schema
    return StructType([*schema, *struct_type.from_ddl(CHANGE_SCHEMA)]) if source.changes else schema
