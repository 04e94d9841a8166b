"""What happens to one micro-batch between its source and its commit."""

from dataclasses import dataclass
from functools import reduce
from operator import or_

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType, TimestampType

from include.engine import commit, prune, quality
from include.engine.checkpoint import Checkpoint
from include.engine.commit import Stamp
from include.engine.parse import typed
from include.engine.transform import transformed
from include.ledger import checkpoint as ledger
from include.settings import settings
from include.spec import Append, Delta, Kafka, Table, Upsert

# One file takes this many rows at the most before a batch is written as several, by all cores.
ROWS_PER_FILE = 100_000

# Below this many rows, generating and compiling code costs more than it saves: half of a small batch's CPU.
SMALL_BATCH_ROWS = 20_000
FOR_SMALL_BATCHES = {"spark.sql.codegen.factoryMode": "NO_CODEGEN", "spark.sql.adaptive.enabled": "false"}


@dataclass
class Life:
    """One flow in one process: its table, its checkpoint and the lease it writes under.

    rows_before: how many rows the batch before had, by which the next one is tuned.
    """

    table: Table
    checkpoint: Checkpoint
    epoch: int
    rows_before: int = 0

    def stamp(self, batch: int) -> Stamp:
        source_from = ledger.end_offset(self.checkpoint.path, batch - 1)
        source_to = ledger.end_offset(self.checkpoint.path, batch)
        here = self.checkpoint
        return Stamp(self.table.name, here.generation, batch, self.epoch, here.source, source_from, source_to)

    def may_have_been_tried(self, batch: int) -> bool:
        """Only the first batch of a life may have been begun by the life before."""
        return batch == self.checkpoint.written + 1


def shaped(rows: DataFrame, table: Table) -> DataFrame:
    """Source rows as rows of the table, by its `parse` and `transform`, in the order of its schema."""
    schema = StructType.fromDDL(table.schema)
    if table.parse:
        rows = typed(rows, table.parse, schema)
    if table.transform:
        rows = transformed(rows, table.transform)
    return rows.select(*[F.col(f"`{name}`") for name in schema.fieldNames()])


def _stepped(rows: DataFrame, table: Table) -> DataFrame:
    """Rows of a stored source as rows of the last temporary step before the table."""
    for step in table.steps:
        rows = shaped(rows, step)
    return rows


def write(rows: DataFrame, batch: int, life: Life) -> None:
    """Write one batch of a flow. Called again with the same batch, it leaves the tables as after the first time."""
    if batch <= life.checkpoint.written:
        # It has happened. Another rule or transform than at that time must not touch the quarantine any more.
        return
    table, stamp = life.table, life.stamp(batch)
    as_it_came = isinstance(table.source, Kafka) and not (table.parse or table.transform)
    _tune(rows, _kafka_records(stamp) if as_it_came else life.rows_before)
    rows = _stepped(rows, table)
    if isinstance(table.write, Upsert):
        life.rows_before = _recompute(rows, table, table.write, stamp)
    elif as_it_came:
        commit.commit(_in_few_files(rows, _kafka_records(stamp)), table, stamp)
    else:
        life.rows_before = _append_judged(rows, life, table.write, stamp)


def _tune(rows: DataFrame, expected_rows: int) -> None:
    for key, value in FOR_SMALL_BATCHES.items():
        if expected_rows < SMALL_BATCH_ROWS:
            rows.sparkSession.conf.set(key, value)
        else:
            rows.sparkSession.conf.unset(key)


def _append_judged(rows: DataFrame, life: Life, write: Append, stamp: Stamp) -> int:
    table, may_be_replay = life.table, life.may_have_been_tried(stamp.batch)
    judged = quality.judged(shaped(rows, table), table.expect).persist()
    try:
        moment = _moment_key(table, write)
        starts = F.unix_seconds(prune.bucket(moment, "minute")) if moment else F.lit(None).cast("bigint")
        kept = ~quality.is_broken()
        counted = judged.agg(
            F.count_if(kept).alias("kept"),
            F.count_if(~kept).alias("broken"),
            F.collect_set(F.when(kept, starts)).alias("starts"),
        ).first()
        if table.expect and (counted.broken or may_be_replay):
            broken = judged.filter(~kept).coalesce(1)
            commit.quarantine(broken, table, stamp, may_be_replay, life.checkpoint.last_commit)
        good = judged.filter(kept).drop(quality.RULES)
        if write.unique:
            near = prune.condition(moment, counted.starts, "minute") if moment else "true"
            good = _first_of_each(good, table, write, near)
        commit.commit(_in_few_files(good, counted.kept), table, stamp)
        return int(counted.kept + counted.broken)
    finally:
        judged.unpersist()


def _moment_key(table: Table, write: Append) -> str | None:
    """The key that is a timestamp, by which stored rows can be narrowed."""
    schema = StructType.fromDDL(table.schema)
    return next((key for key in write.unique if isinstance(schema[key].dataType, TimestampType)), None)


def _first_of_each(rows: DataFrame, table: Table, write: Append, near: str) -> DataFrame:
    """Rows whose key is new, the first of each. A row with a NULL in its key has no identity, and stays."""
    keys = write.unique
    first = Window.partitionBy(*keys).orderBy(*(write.first_by or keys))
    is_nobody = reduce(or_, [F.col(key).isNull() for key in keys])
    rows = rows.withColumn("_place", F.when(is_nobody, 1).otherwise(F.row_number().over(first)))
    rows = rows.filter("_place = 1").drop("_place")
    stored = rows.sparkSession.read.format("delta").load(str(settings().table_path(table.name)))
    # On plain equality, which a NULL never meets.
    return rows.join(stored.filter(near).select(*keys), on=list(keys), how="left_anti").select(*rows.columns)


def _recompute(rows: DataFrame, table: Table, write: Upsert, stamp: Stamp) -> int:
    by = write.recompute
    touched = rows.groupBy(F.unix_seconds(prune.bucket(by.of, by.unit)).alias("start")).count().collect()
    starts = [row["start"] for row in touched]
    assert isinstance(table.source, Delta)
    source = (
        rows.sparkSession.read.format("delta")
        .option("versionAsOf", ledger.read_version(stamp.source_to))
        .load(str(settings().table_path(table.source.table)))
    )
    source = _stepped(source, table).filter(prune.condition(by.of, starts, by.unit))
    source = source.withColumn(by.name, prune.bucket(by.of, by.unit))
    near = prune.condition(f"stored`.`{by.name}", starts, by.unit)
    commit.commit(shaped(source, table), table, stamp, pruning=near)
    return sum(row["count"] for row in touched)


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
