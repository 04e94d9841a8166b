"""Forgets retained deletes, before which no change is accepted any more."""

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from include.delta import stored_table
from include.engine import commit, sql_text
from include.engine.rows import watermark
from include.lake import locations
from include.spec import Table

# A commit costs as much as several batches, so it waits for so many rows, and for this share of all.
FEWEST_ROWS, LEAST_SHARE = 1_000, 0.2


def forget_late(spark: SparkSession, table: Table, newest: int | None, metadata: dict[str, object]) -> bool:
    """Deletes what the table has retained from before its watermark, if that is much. Returns whether it did.

    A change that it would decide is late, and goes to the quarantine. newest: the watermark time, in microseconds since
    1970. The caller holds the lock of the table, and none of its batches is being written.
    """
    declared = table.watermark
    if declared is None or newest is None or not table.merges_changes:
        return False
    border = newest - watermark.micros(declared.minutes)
    late_rows, rows = _count(table.retained, declared.of, border)
    if late_rows < FEWEST_ROWS or late_rows < LEAST_SHARE * rows:
        return False
    with commit.user_metadata(spark, metadata, {}):
        stored = sql_text.delta(locations.table_path(table.retained))
        spark.sql(f"DELETE FROM {stored} WHERE `{declared.of}` < timestamp_micros({border})")
    return True


def _count(name: str, column: str, border: int) -> tuple[float, int]:
    """Estimates by the statistics of the files how many rows lie before the border. Also returns how many there are."""
    actions = pa.table(stored_table.open_table(name).get_add_actions(flatten=True))
    counts = actions.column("num_records").to_pylist()
    bounds = (f"min.{column}", f"max.{column}")
    if not set(bounds) <= set(actions.column_names):
        return 0, sum(counts)
    times = [pc.cast(actions.column(bound), pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist() for bound in bounds]
    late_rows = 0.0
    for count, least, greatest in zip(counts, *times, strict=True):
        if least is not None and greatest is not None and least < border:
            late_rows += count * min(1.0, (border - least) / max(1, greatest - least))
    return late_rows, sum(counts)
