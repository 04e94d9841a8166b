"""What happens to one micro-batch between its source and its commit."""

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType, TimestampType

from include.engine import commit, prune, quality
from include.engine.commit import Stamp
from include.engine.parse import typed
from include.ledger import checkpoint as ledger
from include.settings import settings
from include.spec import Bucket, Delta, Table, Upsert

# One file takes this many rows at the most before a batch is written as several, by all cores.
ROWS_PER_FILE = 100_000


@dataclass(frozen=True)
class Life:
    """One flow in one process: its table, its checkpoint and the lease it writes under.

    first_batch: the only batch that may have been tried before.
    """

    table: Table
    checkpoint: Path
    generation: int
    epoch: int
    first_batch: int

    def stamp(self, batch: int) -> Stamp:
        source_from = ledger.end_offset(self.checkpoint, batch - 1)
        source_to = ledger.end_offset(self.checkpoint, batch)
        return Stamp(self.table.name, self.generation, batch, self.epoch, source_from, source_to)


def shaped(rows: DataFrame, table: Table) -> DataFrame:
    """Source rows as rows of the table, by its `parse` and `transform`, in the order of its schema."""
    schema = StructType.fromDDL(table.schema)
    if table.parse:
        rows = typed(rows, table.parse, schema)
    if table.transform:
        rows = table.transform(rows)
    return rows.select(*[F.col(f"`{name}`") for name in schema.fieldNames()])


def write(rows: DataFrame, batch: int, life: Life) -> None:
    """Write one batch of a flow. Called again with the same batch, it leaves the tables as after the first time."""
    stamp = life.stamp(batch)
    if isinstance(life.table.write, Upsert):
        _recompute(rows, life.table, life.table.write.recompute, stamp)
    elif life.table.expect or life.table.write.unique:
        _append_judged(rows, life.table, stamp, may_be_replay=batch == life.first_batch)
    else:
        commit.commit(_in_few_files(rows, _kafka_records(stamp)), life.table, stamp)


def _append_judged(rows: DataFrame, table: Table, stamp: Stamp, may_be_replay: bool) -> None:
    judged = quality.judged(shaped(rows, table), table.expect).persist()
    try:
        moment = _moment_key(table)
        starts = F.unix_seconds(prune.bucket(moment, "minute")) if moment else F.lit(None).cast("bigint")
        kept = ~quality.is_broken()
        counted = judged.agg(
            F.count_if(kept).alias("kept"),
            F.count_if(~kept).alias("broken"),
            F.collect_set(F.when(kept, starts)).alias("starts"),
        ).first()
        if table.expect and (counted.broken or may_be_replay):
            commit.replace_quarantined(judged.filter(~kept).coalesce(1), table, stamp)
        rows = judged.filter(kept).drop(quality.RULES)
        if table.write.unique:
            near = prune.condition(moment, counted.starts, "minute") if moment else "true"
            rows = _first_of_each(rows, table, near)
        commit.commit(_in_few_files(rows, counted.kept), table, stamp)
    finally:
        judged.unpersist()


def _moment_key(table: Table) -> str | None:
    """The key that is a timestamp, by which stored rows can be narrowed."""
    schema = StructType.fromDDL(table.schema)
    return next((key for key in table.write.unique if isinstance(schema[key].dataType, TimestampType)), None)


def _first_of_each(rows: DataFrame, table: Table, near: str) -> DataFrame:
    """Rows whose key is new, the first of each."""
    keys = table.write.unique
    first = Window.partitionBy(*keys).orderBy(*(table.write.first_by or keys))
    rows = rows.withColumn("_place", F.row_number().over(first)).filter("_place = 1").drop("_place")
    stored = rows.sparkSession.read.format("delta").load(str(settings().table_path(table.name)))
    stored = stored.filter(near).select(*keys)
    same = [rows[key].eqNullSafe(stored[key]) for key in keys]
    return rows.join(stored, on=same, how="left_anti")


def _recompute(rows: DataFrame, table: Table, by: Bucket, stamp: Stamp) -> None:
    touched = rows.select(F.unix_seconds(prune.bucket(by.of, by.unit)).alias("start")).distinct().collect()
    starts = [row.start for row in touched]
    assert isinstance(table.source, Delta)
    source = (
        rows.sparkSession.read.format("delta")
        .option("versionAsOf", ledger.read_version(stamp.source_to))
        .load(str(settings().table_path(table.source.table)))
        .filter(prune.condition(by.of, starts, by.unit))
        .withColumn(by.name, prune.bucket(by.of, by.unit))
    )
    near = prune.condition(by.name, starts, by.unit).replace(f"`{by.name}`", f"stored.`{by.name}`")
    commit.commit(shaped(source, table), table, stamp, pruning=near)


def _in_few_files(rows: DataFrame, count: int) -> DataFrame:
    """Small batches as one file; large ones as they come, so that all cores write."""
    return rows.coalesce(1) if count <= ROWS_PER_FILE else rows


def _kafka_records(stamp: Stamp) -> int:
    """How many Kafka records the batch spans."""
    begin = stamp.source_from or {}
    return sum(
        end - begin.get(topic, {}).get(partition, 0)
        for topic, partitions in stamp.source_to.items()
        for partition, end in partitions.items()
    )
