"""How far a flow has come in its rows' own time, and which rows are too late for that.

Nothing is kept in Spark's state: the commits of the table carry it, so it survives whatever a checkpoint does not.
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.engine.batch import quality, read
from include.readers import resume_position
from include.rules import Rule
from include.spec import Expect, Table, Watermark


def newest(spark: SparkSession, table: Table) -> int | None:
    """The watermark's greatest time among the rows that the flow has taken, in microseconds since 1970.

    As the flow's last commit says; where that speaks of another column or of none, as the table's rows say.
    """
    watermark = table.watermark
    assert watermark
    said = (resume_position.last_stamp(table) or {}).get("newest") or {}
    if said.get(watermark.of) is not None:
        return int(said[watermark.of])
    stored = read.newest(spark, table.name)
    assert stored is not None
    found = stored.agg(F.max(F.unix_micros(f"`{watermark.of}`")).alias("newest")).first()
    return found and found.newest


def rule(watermark: Watermark, newest: int | None) -> Expect:
    """What a row has to meet in order not to be late. newest: as above."""
    condition = "true"
    if newest is not None:
        border = newest - border_micros(watermark)
        condition = f"`{watermark.of}` IS NULL OR `{watermark.of}` >= timestamp_micros({border})"
    return Expect(watermark.rule, condition, watermark.late)


def border_micros(watermark: Watermark) -> int:
    """How far behind the newest time a row may lie, in microseconds."""
    return round(watermark.minutes * 60_000_000)


def rules_of(table: Table, newest: int | None) -> tuple[Rule, ...]:
    """The rules of a table's rows, that of late ones among them. newest: as above."""
    return (*table.expect, rule(table.watermark, newest)) if table.watermark else table.expect


def with_lateness(rows: DataFrame, table: Table, newest: int | None) -> DataFrame:
    """Rows that were judged by all rules but that of late ones, judged by this one as well. newest: as above."""
    if table.watermark is None:
        return rows
    late = rule(table.watermark, newest)
    is_in_time = F.coalesce(F.expr(late.condition), F.lit(False))
    with_late = F.concat(quality.RULES, F.array(F.lit(late.name)))
    return rows.withColumn(quality.RULES, F.when(is_in_time, F.col(quality.RULES)).otherwise(with_late))
