"""Writes a small batch of an aggregate: reads its buckets from the files that may hold them, and replaces theirs."""

from dataclasses import asdict

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from deltalake import DeltaTable
from pyarrow import parquet
from pyspark.sql import SparkSession

from include.engine import commit, prune, table_rows
from include.engine.commit import Stamp
from include.engine.fast_path import data_file, near
from include.engine.fast_path.features import Refused
from include.engine.fast_path.known_keys import is_comparable, keys_of, micros
from include.engine.fast_path.transaction import Target, Transaction
from include.ledger import checkpoint
from include.ledger.appended import Read
from include.settings import settings
from include.spec import Bucket, Delta, Table, Upsert

MOST_SOURCE_ROWS = 50_000
MOST_REPLACED_BYTES = 32_000_000
# So many rows of other buckets may share a file with those of a batch; more get a file of their own, which the next
# batches need not write again.
MOST_ROWS_BESIDE = 1_000

Starts = set[int | None]


class Aggregator:
    """Of one flow, whose table is recomputed by time buckets."""

    def __init__(self, spark: SparkSession, table: Table, write: Upsert) -> None:
        assert write.recompute and isinstance(table.source, Delta)
        self._table = table
        self._write = write
        self._by: Bucket = write.recompute
        self._source = table.source.table
        self._target = Target(spark, table.name)
        self._opened: dict[str, DeltaTable] = {}
        self._columns: list[str] | None = None

    @staticmethod
    def suits(table: Table) -> bool:
        """Whether the buckets of a batch can be told from its source's files alone."""
        by = table.write.recompute if isinstance(table.write, Upsert) else None
        return by is not None and isinstance(table.source, Delta) and not table.source.changes and not table.steps

    def write(self, spark: SparkSession, files: tuple[Read, ...], stamp: Stamp) -> None:
        """Recompute the buckets in which rows of these files lie. Raises Refused where the table is not for this."""
        transaction = self._target.begin()
        if transaction.last_batch(stamp.txn_app_id) >= stamp.batch:
            return
        keys = [transaction.layout.schema.field(key) for key in self._write.keys]
        if strange := next((key.name for key in keys if not is_comparable(key.type)), None):
            raise Refused(f"its key {strange} is of a type that is not compared outside Spark")
        starts = self._touched(files)
        made = self._made(spark, starts, checkpoint.read_version(stamp.source_to)) if starts else None
        rows = data_file.conform(made, transaction.layout) if made is not None else None
        self._replace(spark, transaction, rows, starts, stamp)

    def forget(self) -> None:
        """What is known of the table may be wrong."""
        self._target.note(None)

    def _touched(self, files: tuple[Read, ...]) -> Starts:
        path, width = settings().table_path(self._source), prune.UNIT_SECONDS[self._by.unit]
        starts: Starts = set()
        for file in files:
            times = micros(parquet.read_table(path / file.path, columns=[self._by.of]), self._by.of)
            starts |= {None if time is None else time // (width * 1_000_000) * width for time in times}
        return starts

    def _made(self, spark: SparkSession, starts: Starts, version: int) -> pa.Table:
        """The rows that all rows of these buckets make, as of a version of the source."""
        opened, by = self._open(self._source, version), self._by
        columns = self._needed(spark, pa.schema(opened.schema()).names)
        spans = _spans(starts, by.unit)
        found = near.read(self._source, opened, by.of, spans, None in starts, columns, MOST_SOURCE_ROWS + 1)
        if len(found) > MOST_SOURCE_ROWS:
            raise Refused(f"its buckets hold more than {MOST_SOURCE_ROWS:,} rows")
        # As one batch of Arrow: Spark takes an empty one between two others for the end, and leaves out what follows.
        frame = spark.createDataFrame(found.combine_chunks()).coalesce(1)
        return table_rows.aggregated(frame, self._table, self._write).toArrow()

    def _needed(self, spark: SparkSession, names: list[str]) -> list[str]:
        """The columns of its source that the aggregate is made of, as Spark finds them."""
        if self._columns is None:
            stored = spark.read.format("delta").load(str(settings().table_path(self._source)))
            made = table_rows.aggregated(stored, self._table, self._write)
            leaves = made._jdf.queryExecution().executedPlan().collectLeaves()
            needed = {self._by.of, *names}
            if leaves.size() == 1 and leaves.apply(0).nodeName().startswith("Scan parquet"):
                needed = {self._by.of, *leaves.apply(0).requiredSchema().fieldNames()}
            self._columns = [name for name in names if name in needed]
        return self._columns

    def _open(self, table: str, version: int) -> DeltaTable:
        opened = self._opened[table] = near.at_version(table, self._opened.get(table), version)
        return opened

    def _replace(
        self, spark: SparkSession, transaction: Transaction, rows: pa.Table | None, starts: Starts, stamp: Stamp
    ) -> None:
        schema = transaction.layout.schema
        rows = schema.empty_table() if rows is None else rows
        new = set(keys_of(rows, self._write.keys))
        removes, rest, updated = [], schema.empty_table(), 0
        for path, size in self._candidates(transaction, starts) if new else ():
            stored = parquet.read_table(f"{self._target.path}/{path}")
            stored = data_file.conform(stored, transaction.layout)
            is_kept = pa.array([key not in new for key in keys_of(stored, self._write.keys)], pa.bool_())
            if (count := len(stored) - (pc.sum(is_kept).as_py() or 0)) == 0:
                continue
            updated += count
            removes.append(data_file.removal(path, size))
            rest = pa.concat_tables([rest, stored.filter(is_kept)])
        parts = [pa.concat_tables([rest, rows])] if len(rest) <= MOST_ROWS_BESIDE else [rest, rows]
        adds = [data_file.write([part], self._target.path, transaction.layout).added() for part in parts if len(part)]
        metrics = {
            "operationNumSourceRows": len(rows),
            "numTargetRowsInserted": len(rows) - updated,
            "numTargetRowsUpdated": updated,
            "numTargetRowsDeleted": 0,
            "numTargetRowsCopied": len(rest),
            "numOutputRows": len(rows) + len(rest),
            "numTargetFilesAdded": len(adds),
            "numTargetFilesRemoved": len(removes),
            "numTargetBytesAdded": sum(add["size"] for add in adds),
            "numTargetBytesRemoved": sum(remove["size"] for remove in removes),
        }
        # A MERGE takes its stamp from the session.
        with commit.stamped(spark, asdict(stamp), {}):
            transaction.replace(adds, removes, (stamp.txn_app_id, stamp.batch), metrics)

    def _candidates(self, transaction: Transaction, starts: Starts) -> list[tuple[str, int]]:
        """The files, with their sizes, that may hold rows of these buckets, by their statistics."""
        actions = pa.table(self._open(self._table.name, transaction.read_version).get_add_actions(flatten=True))
        names = (f"min.{self._by.name}", f"max.{self._by.name}", f"null_count.{self._by.name}")
        bounds = [micros(actions, name) if name in actions.column_names else None for name in names[:2]]
        nulls = actions.column(names[2]).to_pylist() if names[2] in actions.column_names else None
        spans = _spans(starts, self._by.unit)
        found = []
        for place, (path, size) in enumerate(
            zip(actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist(), strict=True)
        ):
            least, greatest = (None if bound is None else bound[place] for bound in bounds)
            is_unknown = least is None or greatest is None
            holds_null = None in starts and (nulls is None or nulls[place] != 0)
            # The greatest time may be cut down to milliseconds.
            if is_unknown or holds_null or any(begin <= greatest + 1_000 and least < end for begin, end in spans):
                found.append((path, size))
        if sum(size for _, size in found) > MOST_REPLACED_BYTES:
            raise Refused("its buckets lie in large files")
        return found


def _spans(starts: Starts, unit: str) -> list[tuple[int, int]]:
    """The buckets, and where they are many what lies between them, in microseconds since 1970."""
    spans = prune.spans([start for start in starts if start is not None], prune.UNIT_SECONDS[unit])
    return [(begin * 1_000_000, end * 1_000_000) for begin, end in spans]
