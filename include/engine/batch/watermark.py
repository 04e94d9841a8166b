"""Watermarks: how far a flow has come in event time, and which rows are late.

The commits of the table store the watermark, not Spark's state, so it survives the loss of a checkpoint.
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.engine.batch import quality, read, storable
from include.readers import resume_position
from include.rules import Rule
from include.spec import Expect, Table, Watermark


def newest(spark: SparkSession, table: Table) -> int | None:
    """Returns the greatest watermark time of the rows that the flow has read, in microseconds since 1970.

    Reads it from the flow's last commit. If that holds no time of this column, computes it from the table's rows.
    """
    watermark = table.watermark
    assert watermark
    newest_times = (resume_position.last_commit_metadata(table) or {}).get("newest") or {}
    if newest_times.get(watermark.of) is not None:
        return int(newest_times[watermark.of])
    stored = read.newest(spark, table.name)
    assert stored is not None
    row = stored.agg(F.max(F.unix_micros(f"`{watermark.of}`")).alias("newest")).first()
    newest_stored: int | None = row.newest if row else None
    return newest_stored


def rule(watermark: Watermark, newest: int | None) -> Expect:
    """Returns the rule that late rows break. newest: microseconds since 1970."""
    condition = "true"
    if newest is not None:
        border = newest - border_micros(watermark)
        condition = f"`{watermark.of}` IS NULL OR `{watermark.of}` >= timestamp_micros({border})"
    return Expect(watermark.rule, condition, watermark.late)


def border_micros(watermark: Watermark) -> int:
    """Returns how far behind the newest time a row may lie, in microseconds."""
    return round(watermark.minutes * 60_000_000)


def rules_of(table: Table, newest: int | None) -> tuple[Rule, ...]:
    """Returns the rules that rows are checked by, and that of late rows. newest: microseconds since 1970."""
    rules = storable.rules_of(table)
    return (*rules, rule(table.watermark, newest)) if table.watermark else rules


def with_lateness(rows: DataFrame, table: Table, newest: int | None) -> DataFrame:
    """Adds the rule of late rows to the `_rules` of rows that were checked by the others. newest: microseconds since
    1970.
    """
    if table.watermark is None:
        return rows
    late = rule(table.watermark, newest)
    is_in_time = F.coalesce(F.expr(late.condition), F.lit(False))
    with_late = F.concat(quality.RULES, F.array(F.lit(late.name)))
    return rows.withColumn(quality.RULES, F.when(is_in_time, F.col(quality.RULES)).otherwise(with_late))
