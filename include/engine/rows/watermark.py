"""Watermarks: how far a flow has come in event time, and which rows are late.

The commits of the table store the watermark, not Spark's state, so it survives the loss of a checkpoint.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.checkpoints import checkpoint_files
from include.engine.commit import read_newest
from include.engine.rows import merge_changes, quality, storable
from include.flows import resume_position
from include.lake.paths import LakePath
from include.rules import Rule
from include.spec import Expect, Flow, Table, Watermark

MINUTE_MICROS = 60_000_000


@dataclass(frozen=True)
class EventTimes:
    """What makes a row late, or too far ahead to count. All times are in microseconds since 1970.

    newest: the greatest time of the rows that the flow has read; None before the first one. latest: the greatest time
    that a row of this batch may have to move it; None: any.
    """

    newest: int | None
    latest: int | None

    def broken(self, watermark: Watermark, time: int | None) -> tuple[str, ...]:
        """Returns the rules of the watermark that a row of this time breaks."""
        if time is None:
            return ()
        if self.newest is not None and time < self.newest - micros(watermark.minutes):
            return (watermark.rule,)
        return (watermark.ahead_rule,) if self.is_ahead(time) else ()

    def is_ahead(self, time: int) -> bool:
        return self.latest is not None and time > self.latest

    def after(self, times: Iterable[int | None]) -> int | None:
        """Returns the greatest time, once rows of these times were read."""
        counted = [time for time in times if time is not None and not self.is_ahead(time)]
        return max([*counted, *([] if self.newest is None else [self.newest])], default=None)


def micros(minutes: float) -> int:
    return round(minutes * MINUTE_MICROS)


def latest(table: Table, checkpoint: LakePath, batch: int) -> int | None:
    """Returns the greatest time that a row of the batch may have to move the watermark, in microseconds since 1970.

    It goes by the time at which Spark planned the batch, as its checkpoint holds it, so that a replay of the batch has
    the same answer.
    """
    assert table.watermark
    planned_at = checkpoint_files.planned_batch(checkpoint, batch).at
    return None if planned_at is None else round(planned_at * 1_000_000) + micros(table.watermark.ahead_minutes)


def newest(spark: SparkSession, table: Flow, latest: int | None) -> int | None:
    """Returns the greatest watermark time of the rows that the flow has read, in microseconds since 1970.

    Reads it from the flow's last commit. If that holds no time of this column up to `latest`, computes it from the
    table's rows up to then.
    """
    watermark = table.watermark
    assert watermark
    newest_times = (resume_position.last_commit_metadata(table) or {}).get("newest") or {}
    recorded = newest_times.get(watermark.of)
    if recorded is not None and (latest is None or recorded <= latest):
        return int(recorded)
    stored = read_newest(spark, table.name)
    assert stored is not None
    time = F.unix_micros(f"`{watermark.of}`")
    if latest is not None:
        stored = stored.filter(time <= latest)
    row = stored.agg(F.max(time).alias("newest")).first()
    newest_stored: int | None = row.newest if row else None
    return newest_stored


def rules(watermark: Watermark, times: EventTimes) -> tuple[Expect, Expect]:
    """Returns the rules that late rows break, and rows that are too far ahead."""
    late = ahead = "true"
    if times.newest is not None:
        border = times.newest - micros(watermark.minutes)
        late = f"`{watermark.of}` IS NULL OR `{watermark.of}` >= timestamp_micros({border})"
    if times.latest is not None:
        ahead = f"`{watermark.of}` IS NULL OR `{watermark.of}` <= timestamp_micros({times.latest})"
    return Expect(watermark.rule, late, watermark.late), Expect(watermark.ahead_rule, ahead, "warn")


def rules_of(table: Table, times: EventTimes) -> tuple[Rule, ...]:
    """Returns the rules that rows are checked by, and those of the watermark."""
    stored_rules = storable.rules_of(table)
    return (*stored_rules, *rules(table.watermark, times)) if table.watermark else stored_rules


def with_broken(rows: DataFrame, table: Table, times: EventTimes) -> DataFrame:
    """Adds the rules of the watermark to the `_rules` of rows that were checked by the others."""
    if table.watermark is None:
        return rows
    holds = [F.coalesce(F.expr(rule.condition), F.lit(False)) for rule in rules(table.watermark, times)]
    if table.merges_changes:
        holds = [merge_changes.is_exempt(table.write) | hold for hold in holds]
    broken = [
        F.when(hold, F.array().cast("array<string>")).otherwise(F.array(F.lit(rule.name)))
        for hold, rule in zip(holds, rules(table.watermark, times), strict=True)
    ]
    return rows.withColumn(quality.RULES, F.concat(quality.RULES, *broken))
