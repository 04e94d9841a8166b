"""What happens to one micro-batch between its source and its commit."""

from dataclasses import asdict, dataclass, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include import ddl
from include.engine import avro, commit, deduplicate, files, parse, prune, quality, watermark
from include.engine.checkpoint import Checkpoint
from include.engine.columns import OWN
from include.engine.commit import Stamp
from include.engine.quality import Tally
from include.engine.transform import transformed
from include.errors import Broken
from include.ledger import checkpoint as ledger
from include.settings import settings
from include.spec import CHANGE_SCHEMA, Append, Avro, Bucket, Delta, Files, Kafka, Rule, Table, Upsert

# One file takes this many rows at the most before a batch is written as several, by all cores.
ROWS_PER_FILE = 100_000

# Below this many rows, generating and compiling code costs more than it saves: half of a small batch's CPU.
SMALL_BATCH_ROWS = 20_000
FOR_SMALL_BATCHES = {"spark.sql.codegen.factoryMode": "NO_CODEGEN", "spark.sql.adaptive.enabled": "false"}


@dataclass
class Life:
    """One flow in one process: its table, its checkpoint and the lease it writes under.

    rows_before: how many rows the batch before had, by which the next one is tuned.
    newest: of a table with a watermark, once it is known, what the next batch's late rows are late by.
    """

    table: Table
    checkpoint: Checkpoint
    epoch: int
    rows_before: int = 0
    newest: int | None = None

    def stamp(self, batch: int) -> Stamp:
        source_from = ledger.end_offset(self.checkpoint.path, batch - 1)
        source_to = ledger.end_offset(self.checkpoint.path, batch)
        here = self.checkpoint
        return Stamp(self.table.flow, here.generation, batch, self.epoch, here.source, source_from, source_to)

    def may_have_been_tried(self, batch: int) -> bool:
        """Only the first batch of a life may have been begun by the life before."""
        return batch == self.checkpoint.written + 1


def shaped(rows: DataFrame, table: Table) -> DataFrame:
    """Source rows as rows of the table, by its `parse` and `transform`, in the order of its schema."""
    schema = StructType.fromDDL(table.schema)
    if table.parse:
        typed = avro.typed if isinstance(table.parse, Avro) else parse.typed
        rows = typed(rows, table.parse, schema)
        rows = parse.strict(rows) if table.parse.fails else rows
    if table.transform:
        rows = transformed(rows, table.transform)
    return rows.select(*[F.col(f"`{name}`") for name in schema.fieldNames()])


def stepped(rows: DataFrame, table: Table) -> DataFrame:
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
    if _has_no_columns_yet(rows, table):
        nothing = rows.sparkSession.createDataFrame([], StructType.fromDDL(table.schema))
        commit.commit(nothing, table, replace(stamp, rows=asdict(Tally.of([], table.expect))))
        return
    as_it_came = isinstance(table.source, Kafka) and not (table.parse or table.transform)
    _tune(rows, _kafka_records(stamp) if as_it_came else life.rows_before)
    rows = stepped(rows, table)
    if isinstance(table.source, Files):
        is_replay = life.may_have_been_tried(batch)
        life.rows_before = files.write(rows.sparkSession, table, life.checkpoint, stamp, is_replay)
    elif isinstance(table.write, Upsert):
        life.rows_before = _recompute(rows, table, table.write, stamp)
    elif as_it_came:
        commit.commit(in_few_files(rows, _kafka_records(stamp)), table, stamp)
    else:
        life.rows_before = _append_judged(rows, life, table.write, stamp)


def _has_no_columns_yet(rows: DataFrame, table: Table) -> bool:
    """Whether it reads a table of files before the first file has come: what it says of columns holds from then on."""
    is_bare = {name.lower() for name in rows.columns} <= OWN | {name.lower() for name in ddl.columns(CHANGE_SCHEMA)}
    return isinstance(table.source, Delta) and is_bare and rows.isEmpty()


def _tune(rows: DataFrame, expected_rows: int) -> None:
    for key, value in FOR_SMALL_BATCHES.items():
        if expected_rows < SMALL_BATCH_ROWS:
            rows.sparkSession.conf.set(key, value)
        else:
            rows.sparkSession.conf.unset(key)


def _append_judged(rows: DataFrame, life: Life, write: Append, stamp: Stamp) -> int:
    table, may_be_replay = life.table, life.may_have_been_tried(stamp.batch)
    if write.watermark and life.newest is None:
        life.newest = watermark.newest(rows.sparkSession, table)
    rules = rules_of(table, life.newest)
    judged = quality.judged(shaped(rows, table), rules, table).persist()
    try:
        tally, starts, newest = _counted(judged, rules, table, write)
        _require_none_fails(tally, rules, stamp)
        if tally.quarantined or (may_be_replay and settings().is_stored(table.quarantine)):
            broken = judged.filter(quality.ends_as("quarantine", rules)).coalesce(1)
            commit.quarantine(broken, table, stamp, may_be_replay, life.checkpoint.last_commit)
        good = judged if tally.kept == tally.read else judged.filter(quality.ends_as("warn", rules))
        good = good.drop(quality.RULES)
        if write.unique:
            good = deduplicate.first_of_each(good, table, write, deduplicate.near(table, write, starts))
        if write.watermark:
            newest = max((one for one in (newest, life.newest) if one is not None), default=None)
            stamp = replace(stamp, newest={write.watermark.of: newest})
        commit.commit(in_few_files(good, tally.kept), table, replace(stamp, rows=asdict(tally)))
        life.newest = newest
        return tally.read
    finally:
        judged.unpersist()


def rules_of(table: Table, newest: int | None) -> tuple[Rule, ...]:
    """The rules of its rows, that of late ones among them. newest: what these are late by, as `Life` has it."""
    return (*table.expect, watermark.rule(table.watermark, newest)) if table.watermark else table.expect


def _counted(
    judged: DataFrame, rules: tuple[Rule, ...], table: Table, write: Append
) -> tuple[Tally, set[int], int | None]:
    """How many rows go where; of those that are kept, the minutes they lie in, and the newest time."""
    moment = deduplicate.moment(table, write)
    starts = F.unix_seconds(prune.bucket(moment, "minute")) if moment else F.lit(None).cast("bigint")
    newest = F.unix_micros(f"`{moment}`") if write.watermark else F.lit(None).cast("bigint")
    # By which rules they break: mostly by one group, that of the rows that break none.
    groups = (
        judged.groupBy(*([quality.RULES] if rules else []))
        .agg(F.count("*").alias("rows"), F.collect_set(starts).alias("starts"), F.max(newest).alias("newest"))
        .select(F.col(quality.RULES) if rules else F.array().alias(quality.RULES), "rows", "starts", "newest")
        .collect()
    )
    tally = Tally.of([(group[quality.RULES], group["rows"]) for group in groups], rules)
    kept = [group for group in groups if quality.strictest(group[quality.RULES], rules) == "warn"]
    times = [group["newest"] for group in kept if group["newest"] is not None]
    return tally, {start for group in kept for start in group["starts"]}, max(times, default=None)


def _require_none_fails(tally: Tally, rules: tuple[Rule, ...], stamp: Stamp) -> None:
    if counts := tally.failing(rules):
        raise Broken(
            f"{stamp.flow}: batch {stamp.batch} of generation {stamp.generation} breaks {counts}, and nothing of it "
            f"was written; it reads its source from {stamp.source_from} to {stamp.source_to}: mend the rule or the "
            f"transform and restart, or let the rule say otherwise='quarantine'",
            "EXPECTATION_FAILED",
        )


def _recompute(rows: DataFrame, table: Table, write: Upsert, stamp: Stamp) -> int:
    by, version = write.recompute, ledger.read_version(stamp.source_to)
    if by is None:
        commit.commit(recomputed(rows.sparkSession, table, write, version), table, stamp)
        return rows.count()
    counts = touched(rows, by)
    buckets = recomputed(rows.sparkSession, table, write, version, prune.condition(by.of, counts, by.unit))
    near = prune.condition(f"stored`.`{by.name}", counts, by.unit)
    commit.commit(buckets, table, stamp, pruning=near)
    return sum(counts.values())


def touched(rows: DataFrame, by: Bucket) -> dict[int | None, int]:
    """How many of these rows lie in each bucket. A bucket is its start, in seconds since 1970."""
    counts = rows.groupBy(F.unix_seconds(prune.bucket(by.of, by.unit)).alias("start")).count().collect()
    return {row["start"]: row["count"] for row in counts}


def recomputed(spark: SparkSession, table: Table, write: Upsert, version: int, condition: str = "true") -> DataFrame:
    """Rows of an aggregate, made of all rows of its source as of a version; condition: of the buckets to compute."""
    assert isinstance(table.source, Delta)
    path = str(settings().table_path(table.source.table))
    return aggregated(spark.read.format("delta").option("versionAsOf", version).load(path), table, write, condition)


def aggregated(source: DataFrame, table: Table, write: Upsert, condition: str = "true") -> DataFrame:
    """Rows of an aggregate, made of these rows of its source."""
    source = stepped(source, table)
    if by := write.recompute:
        source = source.filter(condition).withColumn(by.name, prune.bucket(by.of, by.unit))
    return shaped(source, table)


def in_few_files(rows: DataFrame, count: int) -> DataFrame:
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
