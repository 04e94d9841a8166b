"""The one function that writes a batch, idempotently and stamped."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentWriteException,
)
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.settings import settings
from include.spec import Append, Delta, Table

TXN_APP_ID = "spark.databricks.delta.write.txnAppId"
TXN_VERSION = "spark.databricks.delta.write.txnVersion"
USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"

# By somebody whom no lock binds, an OPTIMIZE by hand, say. Not a conflict of transaction ids, which is the fence.
CONFLICTS = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentWriteException,
)
TRIES = 10


@dataclass(frozen=True)
class CommitMetadata:
    """What every commit of a batch says of itself in Delta's `userMetadata`, as JSON.

    source: which topic or table that is. source_from and source_to: the batch's place in it, as in the checkpoint.
    rows: of a batch that was judged, how many of its rows went where, as `include.engine.batch.quality.RowCounts`.
    newest: of a table with a watermark, the column's greatest time up to this batch, microseconds since 1970.
    fast_path: whether `include.engine.fast_path` wrote it.
    """

    flow: str
    generation: int
    batch: int
    epoch: int
    source: dict[str, Any]
    source_from: Any
    source_to: Any
    rows: dict[str, Any] | None = None
    newest: dict[str, int | None] | None = None
    fast_path: bool = False

    @property
    def txn_app_id(self) -> str:
        """Delta refuses a second write of the same (txnAppId, batch), so a reset checkpoint needs another id."""
        return txn_app_id(self.flow, self.generation)


def txn_app_id(flow: str, generation: int) -> str:
    return f"{flow}/{generation}"


def commit(rows: DataFrame, table: Table, stamp: CommitMetadata, pruning: str = "true") -> None:
    """Write the batch's rows into the table by its write mode, once, however often it is called.

    pruning: a SQL condition that every stored row with a key of this batch meets, so that other files stay unread.
    """
    spark = rows.sparkSession
    with stamped(spark, asdict(stamp), once(stamp.txn_app_id, stamp.batch)):
        for tries_left in reversed(range(TRIES)):
            try:
                if isinstance(table.write, Append):
                    append(rows, table)
                else:
                    _merge(spark, rows, table, table.write.keys, pruning)
                return
            except CONFLICTS as conflict:
                if not tries_left:
                    raise
                print(f"sluice: {table.flow}: batch {stamp.batch} is written again: {conflict}", file=sys.stderr)


def append(rows: DataFrame, table: Table) -> None:
    rows.write.format("delta").mode("append").save(str(settings().table_path(table.name)))


def once(app_id: str, version: int) -> dict[str, str]:
    """The settings under which a write happens once. A MERGE takes them from nowhere else."""
    return {TXN_APP_ID: app_id, TXN_VERSION: str(version)}


@contextmanager
def stamped(spark: SparkSession, stamp: dict[str, Any], conf: Mapping[str, int | str]) -> Iterator[None]:
    """Commits of this session say this of themselves, under these settings. Each query has a session of its own."""
    values = {USER_METADATA: json.dumps(stamp), **{key: str(value) for key, value in conf.items()}}
    before = {key: spark.conf.get(key, None) for key in values}
    for key, value in values.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, was in before.items():
            spark.conf.unset(key) if was is None else spark.conf.set(key, was)


def _merge(spark: SparkSession, rows: DataFrame, table: Table, keys: tuple[str, ...], pruning: str) -> None:
    same_key = " AND ".join(f"stored.`{key}` <=> new.`{key}`" for key in keys)
    values = [column for column in rows.columns if column not in keys]
    changed = " OR ".join(f"NOT (stored.`{column}` <=> new.`{column}`)" for column in values)
    merge = (
        DeltaTable.forPath(spark, str(settings().table_path(table.name)))
        .alias("stored")
        .merge(rows.alias("new"), f"({pruning}) AND {same_key}")
        .whenMatchedUpdateAll(condition=changed or "false")
        .whenNotMatchedInsertAll()
    )
    if isinstance(table.source, Delta) and table.source.changes:
        # A key goes when the last row of its source did. Its bucket was touched, so it was computed whole.
        merge = merge.whenNotMatchedBySourceDelete(condition=pruning)
    merge.execute()


def quarantine(
    rows: DataFrame, table: Table, stamp: CommitMetadata, may_be_replay: bool, last_commit: tuple[int, int] | None
) -> None:
    """Put this batch's broken rows into the quarantine.

    may_be_replay: an earlier try may have left rows there, which these replace: all that is later than `last_commit`,
    the generation and batch of the flow's newest commit. Looking for them costs more than the write, so it is done
    only then.
    """
    writer = of_batch(rows, asdict(stamp)).write.format("delta").option("userMetadata", json.dumps(asdict(stamp)))
    if may_be_replay:
        number, batch = last_commit or (0, 0)
        later = f"_flow = '{stamp.flow}' AND (_generation > {number} OR _generation = {number} AND _batch > {batch})"
        writer = writer.mode("overwrite").option("replaceWhere", later)
    else:
        writer = writer.mode("append")
    writer.save(str(settings().table_path(table.quarantine)))


def of_batch(rows: DataFrame, stamp: dict[str, Any]) -> DataFrame:
    """Broken rows as the quarantine keeps them of a batch. stamp: as `CommitMetadata`."""
    columns = {name: F.lit(value) for name, value in quarantine_columns(stamp).items()}
    for name in ("_batch", "_replay"):
        columns[name] = columns[name].cast("bigint")
    return rows.withColumns(columns)


def quarantine_columns(stamp: dict[str, Any]) -> dict[str, Any]:
    """What the quarantine keeps of the batch beside each broken row."""
    return {
        "_flow": stamp["flow"],
        "_generation": stamp["generation"],
        "_batch": stamp["batch"],
        "_source": json.dumps(stamp["source_to"]),
        "_replay": None,
    }
