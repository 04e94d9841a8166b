"""Builds the columns that a flow's batches need once, on the streaming DataFrame.

Spark plans them for each batch, but building them takes thousands of calls from Python. This works only if each row is
treated alone: other operators would keep state in a stream.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from include.engine.files.formats.columns import FILE_COLUMNS
from include.engine.rows import quality, storable, transform
from include.engine.rows.transform import AnalysedPlan
from include.rules import Expect, Rule
from include.spec import CHANGE_SCHEMA, Bucket, Flow, ddl

# Below this many rows, code generation costs more than it saves: half of a small batch's CPU time.
SMALL_BATCH_ROWS = 20_000
FOR_SMALL_BATCHES = {"spark.sql.codegen.factoryMode": "NO_CODEGEN", "spark.sql.adaptive.enabled": "false"}
# Spark's defaults. They are set explicitly, because a batch runs inside the execution of its stream, whose tasks would
# keep the settings of the last batch.
FOR_LARGE_BATCHES = {"spark.sql.codegen.factoryMode": "FALLBACK", "spark.sql.adaptive.enabled": "true"}


def tune(spark: SparkSession, expected_rows: int) -> None:
    """Sets the session's options for queries of about `expected_rows` rows."""
    for key, value in (FOR_SMALL_BATCHES if expected_rows < SMALL_BATCH_ROWS else FOR_LARGE_BATCHES).items():
        spark.conf.set(key, value)


def prepared(rows: DataFrame, table: Flow) -> DataFrame | None:
    """Returns the source rows as batches take them: as `with_violations`, for an aggregate as `starts`, and for a table
    with lookups as `parsed`, because each batch may look into newer rows.

    Returns None if the columns must be built for each batch.
    """
    if is_raw(table) or table.reads_files or has_no_columns_yet(rows, table):
        return None
    if table.subject:
        # Each batch asks again who was erased.
        return None
    if table.python:
        # The batch needs the rows of the source, to find the one that makes a function fail.
        return None
    try:
        if table.is_recomputed:
            prepared_rows = starts(rows, table, table.write.recompute) if table.write.recompute else None
        elif table.lookups:
            prepared_rows = parsed(rows, table)
        else:
            rules = storable.rules_of(table)
            is_simple = all(isinstance(rule, Expect) for rule in rules)
            prepared_rows = with_violations(rows, table, rules) if is_simple else None
        return prepared_rows if prepared_rows is not None and AnalysedPlan(prepared_rows, rows).can_stream else None
    except Exception:
        # The transform is user code and may use what streams do not support. The batch reports the error.
        return None


def with_violations(rows: DataFrame, table: Flow, rules: tuple[Rule, ...]) -> DataFrame:
    """Returns source rows as rows of the table plus `_rules`, the rules that each breaks."""
    return quality.with_violations(transform.apply_transform(transform.apply_steps(rows, table), table), rules, table)


def parsed(rows: DataFrame, table: Flow) -> DataFrame:
    """Returns source rows with the columns of the table's steps and `parse`."""
    return transform.parsed(transform.apply_steps(rows, table), table)


def looked_up(rows: DataFrame, table: Flow, rules: tuple[Rule, ...], dimensions: Sequence[DataFrame]) -> DataFrame:
    """Returns rows as `parsed` makes them as `with_violations` does. dimensions: as for `transform.transformed`."""
    return quality.with_violations(transform.transformed(rows, table, dimensions), rules, table)


def starts(rows: DataFrame, table: Flow, bucket: Bucket) -> DataFrame:
    """Returns the bucket of each source row, in column `start`, in seconds since 1970."""
    return transform.starts(transform.apply_steps(rows, table), bucket)


def is_raw(table: Flow) -> bool:
    """Whether the table stores Kafka records unchanged, and all of them."""
    return table.source.reads_topics and not (table.parse or table.transform or table.lookups or table.subject)


def rules_of_source(table: Flow) -> tuple[Expect, ...]:
    """Returns what records have to meet that the table stores unchanged."""
    return (storable.HEADERS,) if is_raw(table) else ()


def has_no_columns_yet(rows: DataFrame, table: Flow) -> bool:
    """Whether it reads a table of files before the first file, which brings the columns."""
    always_present = FILE_COLUMNS | {name.lower() for name in ddl.columns(CHANGE_SCHEMA)}
    return table.source.reads_table and {name.lower() for name in rows.columns} <= always_present
