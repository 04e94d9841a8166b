"""What a range of a table holds by today's code, made of the source rows that its flows have taken so far, and put in
the place of what it held: the quarantine first, then the table, in one commit each.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.control.jobs.backfills import Backfill
from include.engine.batch import deduplicate, quality, read, table_rows
from include.engine.batch.quality import RowCounts
from include.engine.jobs import replay
from include.engine.tables import commit
from include.errors import Broken
from include.ledger.batch_files import Appends
from include.readers import checkpoint, resume_position
from include.readers.batches import BACKFILL
from include.readers.delta_log import Log
from include.readers.offset_ranges import place
from include.recovery import backfills
from include.settings import settings
from include.spec import Append, Delta, Expect, Table, Upsert
from include.validation import slices


@dataclass(frozen=True)
class Made:
    """The rows of a range, kept on disk until its window. stamps: by flow, the commit up to which its source was read.

    Where rules may put rows into the quarantine, each carries the flow it came by.
    """

    rows: DataFrame
    count: int
    stamps: dict[str, dict[str, Any]]


def stamps(table: Table) -> dict[str, dict[str, Any]]:
    """By flow, what its newest commit says of itself, for those that have one.

    Where its source was backfilled right behind that, or put back to there, the flow goes on behind it.
    """
    found = {flow.flow: (flow, stamp) for flow in table.flows if (stamp := resume_position.last_stamp(flow))}
    return {name: {**stamp, "source_to": _goes_on(flow, stamp["source_to"])} for name, (flow, stamp) in found.items()}


def _goes_on(flow: Table, offset: dict[str, Any]) -> dict[str, Any]:
    assert isinstance(flow.source, Delta)
    return resume_position.behind_replacements(offset, flow.source)


def make(spark: SparkSession, table: Table, one: Backfill) -> Made:
    """The costly part, done while the streams go on."""
    # In the job's own session: what is kept once and read once or twice costs more to compress than that saves.
    spark.conf.set("spark.sql.inMemoryColumnarStorage.compressed", "false")
    found = stamps(table)
    flows = [flow for flow in table.flows if flow.flow in found]
    parts = [_shaped(_taken(spark, flow, found[flow.flow]), flow, one) for flow in flows]
    rows = reduce(DataFrame.unionByName, parts).persist(StorageLevel.DISK_ONLY)
    with ExitStack() as failed:
        failed.callback(rows.unpersist)
        made = Made(rows, rows.count(), found)
        failed.pop_all()
    return made


def replace_appends(
    spark: SparkSession, table: Table, one: Backfill, made: Made, stamp: dict[str, Any], go: Callable[[], None]
) -> None:
    """In the window: add what was taken since, judge all of it, and replace the range. go: called before the first
    commit, when nothing but a write can fail any more.
    """
    assert isinstance(table.write, Append)
    now, others = stamps(table), one.range.others(table.sliced_by, slices.is_date(table))
    with ExitStack() as kept:
        found = _with_newer(spark, table, one, made, now)
        kept.callback(found.unpersist)
        rows = quality.with_violations(found, table.expect, table, others)
        if not all(isinstance(rule, Expect) for rule in table.expect):
            rows = rows.persist()
            kept.callback(rows.unpersist)
        tally = _tally(rows, table)
        good = rows if tally.kept == tally.read else rows.filter(quality.ends_as("warn", table.expect))
        good = good.select(*_columns(table))
        if table.write.unique:
            good = deduplicate.first_of_each(good, table, table.write, others)
        go()
        if settings().is_stored(table.quarantine):
            broken = rows.filter(quality.ends_as("quarantine", table.expect)) if tally.quarantined else rows.limit(0)
            _replace_quarantine(broken, table, one, stamp, now)
        _replace_table(table_rows.in_few_files(good, tally.kept), table, one, stamp, now)


def replace_aggregate(
    spark: SparkSession, table: Table, one: Backfill, stamp: dict[str, Any], go: Callable[[], None]
) -> None:
    """The same for the buckets of the range, or for all rows of a table without buckets: wholly in the window."""
    assert isinstance(table.write, Upsert)
    now = stamps(table)
    version = checkpoint.read_version(now[table.flow]["source_to"])
    bucket = table.write.recompute
    source = one.range.condition(bucket.of) if bucket else "true"
    rows = table_rows.recomputed(spark, table, table.write, version, source).persist(StorageLevel.DISK_ONLY)
    try:
        count = rows.count()
        go()
        _replace_table(table_rows.in_few_files(rows, count), table, one, stamp, now)
    finally:
        rows.unpersist()


def _columns(table: Table) -> list[str]:
    return [f"`{name}`" for name in StructType.fromDDL(table.schema).fieldNames()]


def _taken(spark: SparkSession, flow: Table, stamp: dict[str, Any]) -> DataFrame:
    """All source rows up to where the flow stands, to the file."""
    assert isinstance(flow.source, Delta)
    path, end = settings().table_path(flow.source.table), stamp["source_to"]
    is_first = end.get("isStartingVersion")
    version = place(end)[0] if is_first else checkpoint.read_version(end)
    rows = spark.read.format("delta").option("versionAsOf", version).load(str(path))
    left = Appends(Log(path), flow.source).left_of(end) if is_first or place(end)[1] >= 0 else []
    if left:
        rows = rows.filter(~F.col("_metadata.file_name").isin([one.path.rpartition("/")[2] for one in left]))
    return rows


def _with_newer(
    spark: SparkSession, table: Table, one: Backfill, made: Made, now: dict[str, dict[str, Any]]
) -> DataFrame:
    """The rows that were made, and those that the flows have taken since."""
    parts = [made.rows]
    for flow in table.flows:
        before, stamp = made.stamps.get(flow.flow), now.get(flow.flow)
        if stamp is None or (before and before["source_to"] == stamp["source_to"]):
            continue
        if before is None:
            parts.append(_shaped(_taken(spark, flow, stamp), flow, one))
            continue
        if _has_replaced(flow, before["source_to"], stamp["source_to"]):
            # What was made is of rows that are no more.
            return make(spark, table, one).rows
        newer = _between(spark, flow, before["source_to"], stamp["source_to"])
        parts += [_shaped(newer, flow, one)] if newer is not None else []
    return reduce(DataFrame.unionByName, parts)


def _has_replaced(flow: Table, begin: Any, end: Any) -> bool:
    """Whether a commit of the source between these offsets did more than append."""
    assert isinstance(flow.source, Delta)
    log = Log(settings().table_path(flow.source.table))
    first = place(begin)[0] + bool(begin.get("isStartingVersion"))
    between = [one for one in log.versions if first <= one <= place(end)[0]]
    removed = (action["remove"] for one in between for action in log.actions(one, b'"remove"') if "remove" in action)
    return any(one.get("dataChange", True) for one in removed)


def _between(spark: SparkSession, flow: Table, begin: Any, end: Any) -> DataFrame | None:
    """The rows of the files between two offsets, and of no others: a look at the whole source would take too long."""
    assert isinstance(flow.source, Delta)
    path = settings().table_path(flow.source.table)
    files = [one.path for one in Appends(Log(path), flow.source).between(begin, end)]
    return read.delta_files(spark, flow.source.table, files) if files else None


def _shaped(rows: DataFrame, flow: Table, one: Backfill) -> DataFrame:
    """Rows of the range, as `Made` has them."""
    rows = table_rows.apply_transform(table_rows.apply_steps(rows, flow), flow).filter(_condition(flow, one))
    return rows.withColumn("_flow", F.lit(flow.flow)) if flow.expect else rows


def _tally(judged: DataFrame, table: Table) -> RowCounts:
    """How many rows go where. Raises Broken where one breaks a rule that fails."""
    groups = judged.groupBy(quality.RULES).count().collect()
    tally = RowCounts.of([(group[quality.RULES], group["count"]) for group in groups], table.expect)
    if counts := tally.failing(table.expect):
        raise Broken(
            f"{table.name}: rows of the range break {counts}, and nothing of it was replaced: mend the rule or the "
            f"transform, or let the rule say otherwise='quarantine'",
            "EXPECTATION_FAILED",
        )
    print(
        f"sluice: {table.name}: {tally.read:,} rows in the range, {tally.kept:,} kept, {tally.quarantined:,} "
        f"quarantined, {tally.dropped:,} dropped",
        flush=True,
    )
    return tally


def _replace_quarantine(
    broken: DataFrame, table: Table, one: Backfill, stamp: dict[str, Any], now: dict[str, dict[str, Any]]
) -> None:
    """now: as `stamps`. The rows stand there under the newest batch of their flow."""
    if table.expect:
        parts = [commit.of_batch(broken.filter(F.col("_flow") == flow), newest) for flow, newest in now.items()]
        broken = reduce(DataFrame.unionByName, parts)
    # What a batch left there that has not happened, its next try counts and writes again.
    before = _inside(broken.sparkSession, table, table.quarantine, one).filter(replay.has_happened(table)).count()
    with commit.stamped(broken.sparkSession, {**stamp, BACKFILL: said(one, before)}, {}):
        _replace(broken.coalesce(1), table, table.quarantine, one)


def _replace_table(
    rows: DataFrame, table: Table, one: Backfill, stamp: dict[str, Any], now: dict[str, dict[str, Any]]
) -> None:
    """now: as `stamps`."""
    spark = rows.sparkSession
    before = _inside(spark, table, table.name, one).count()
    positions = {flow: found["source_to"] for flow, found in now.items()}
    once = commit.once(backfills.txn_app_id(one), 1)
    with commit.stamped(spark, {**stamp, BACKFILL: {**said(one, before), "position": positions}}, once):
        _replace(rows, table, table.name, one)


def said(one: Backfill, rows_before: int) -> dict[str, Any]:
    """What its commits say of it. How many rows there are after it, Delta counts while it writes them."""
    range_ = dict(zip(("from", "to"), one.range.texts, strict=True))
    return {"number": one.number, "key": one.key, **range_, "alone": one.alone, "rows_before": rows_before}


def _inside(spark: SparkSession, table: Table, name: str, one: Backfill) -> DataFrame:
    return spark.read.format("delta").load(str(settings().table_path(name))).filter(_condition(table, one))


def _replace(rows: DataFrame, table: Table, name: str, one: Backfill) -> None:
    """In one commit."""
    writer = rows.write.format("delta").mode("overwrite")
    writer.option("replaceWhere", _condition(table, one)).save(str(settings().table_path(name)))


def _condition(table: Table, one: Backfill) -> str:
    return one.range.condition(table.sliced_by, slices.is_date(table))
