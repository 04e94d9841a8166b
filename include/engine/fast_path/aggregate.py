"""Writes a small batch of an aggregate: reads its buckets from the files that may hold them, and replaces theirs.

Of an aggregate without buckets, which is recomputed from all rows, all files are read, as long as they are few.
"""

from collections.abc import Iterable
from dataclasses import asdict
from itertools import chain

import pyarrow as pa  # type: ignore[import-untyped]
from deltalake import DeltaTable
from pyarrow import parquet
from pyspark.sql import SparkSession

from include.engine.batch import data_skipping, table_rows
from include.engine.fast_path import data_file, table_at_version
from include.engine.fast_path.features import Refused
from include.engine.fast_path.known_keys import Key, is_comparable, keys_of, micros
from include.engine.fast_path.transaction import Target, Transaction
from include.engine.tables import commit
from include.engine.tables.commit import CommitMetadata
from include.ledger.batch_files import Read
from include.readers import checkpoint, stored_rows
from include.settings import settings
from include.spec import Bucket, Delta, Table, Upsert

# Of the source, that are read for a batch: rows of its buckets, or all where there are no buckets.
MOST_SOURCE_ROWS = 200_000
MOST_REPLACED_BYTES = 32_000_000
# So many rows of other buckets may share a file with those of a batch; more get a file of their own, which the next
# batches need not write again.
MOST_ROWS_BESIDE = 1_000

Starts = set[int | None]


class Aggregator:
    """Of one flow, whose table is recomputed, by time buckets or as a whole."""

    def __init__(self, spark: SparkSession, table: Table, write: Upsert) -> None:
        assert isinstance(table.source, Delta)
        self._table = table
        self._write = write
        self._by = write.recompute
        self._source = table.source.table
        self._target = Target(spark, table.name)
        self._opened: dict[str, DeltaTable] = {}
        self._columns: list[str] | None = None

    @staticmethod
    def suits(table: Table) -> bool:
        """Whether the rows that a batch recomputes can be told from its source's files alone."""
        return isinstance(table.source, Delta) and not table.source.changes and not table.steps

    def write(self, spark: SparkSession, files: tuple[Read, ...], stamp: CommitMetadata) -> None:
        """Recompute the buckets in which rows of these files lie, or all. Raises Refused where the table is not for
        this.
        """
        transaction = self._target.begin()
        if transaction.last_batch(stamp.txn_app_id) >= stamp.batch:
            return
        keys = [transaction.layout.schema.field(key) for key in self._write.keys]
        if strange := next((key.name for key in keys if not is_comparable(key.type)), None):
            raise Refused(f"its key {strange} is of a type that is not compared outside Spark")
        made, candidates = transaction.layout.schema.empty_table(), list[tuple[str, int]]()
        # Else the batch tells nothing new, as that of an OPTIMIZE of its source.
        if files:
            version = checkpoint.read_version(stamp.source_to)
            if self._by is None:
                found, candidates = self._all_source_rows(spark, version), self._files(transaction)
            else:
                starts = self._touched(files, self._by)
                found = self._source_rows(spark, starts, version, self._by)
                candidates = self._candidates(transaction, starts, self._by)
            made = data_file.conform(self._aggregated(spark, found), transaction.layout)
        self._replace(spark, transaction, made, candidates, stamp)

    def forget(self) -> None:
        """What is known of the table may be wrong."""
        self._target.note(None)

    def _touched(self, files: tuple[Read, ...], by: Bucket) -> Starts:
        path, width = settings().table_path(self._source), data_skipping.UNIT_SECONDS[by.unit]
        starts: Starts = set()
        for file in files:
            times = micros(parquet.read_table(path / file.path, columns=[by.of]), by.of)
            starts |= {None if time is None else time // (width * 1_000_000) * width for time in times}
        return starts

    def _source_rows(self, spark: SparkSession, starts: Starts, version: int, by: Bucket) -> pa.Table:
        """All rows of these buckets, as of a version of the source."""
        opened = self._open(self._source, version)
        columns = self._needed(spark, pa.schema(opened.schema()).names)
        spans = _spans(starts, by.unit)
        found = table_at_version.read(self._source, opened, by.of, spans, None in starts, columns, MOST_BUCKET_ROWS + 1)
        if len(found) > MOST_BUCKET_ROWS:
            raise Refused(f"its buckets hold more than {MOST_BUCKET_ROWS:,} rows")
        return found

    def _all_source_rows(self, spark: SparkSession, version: int) -> pa.Table:
        opened = self._open(self._source, version)
        columns = self._needed(spark, pa.schema(opened.schema()).names)
        found = stored_rows.dataset(self._source, opened).scanner(columns=columns).head(MOST_SOURCE_ROWS + 1)
        if len(found) > MOST_SOURCE_ROWS:
            raise Refused(f"its source holds more than {MOST_SOURCE_ROWS:,} rows")
        return found

    def _aggregated(self, spark: SparkSession, rows: pa.Table) -> pa.Table:
        """What these rows of the source make."""
        tuning.tune(spark, len(rows))
        # As one batch of Arrow: Spark takes an empty one between two others for the end, and leaves out what follows.
        frame = spark.createDataFrame(rows.combine_chunks()).coalesce(1)
        return table_rows.aggregated(frame, self._table, self._write).toArrow()

    def _needed(self, spark: SparkSession, names: list[str]) -> list[str]:
        """The columns of its source that the aggregate is made of, as Spark finds them."""
        if self._columns is None:
            stored = spark.read.format("delta").load(str(settings().table_path(self._source)))
            made = table_rows.aggregated(stored, self._table, self._write)
            leaves = made._jdf.queryExecution().executedPlan().collectLeaves()
            needed = set(names)
            if leaves.size() == 1 and leaves.apply(0).nodeName().startswith("Scan parquet"):
                needed = {*leaves.apply(0).requiredSchema().fieldNames(), *([self._by.of] if self._by else [])}
            # An aggregate that needs none still counts rows.
            self._columns = [name for name in names if name in needed] or names[:1]
        return self._columns

    def _open(self, table: str, version: int) -> DeltaTable:
        opened = self._opened[table] = table_at_version.at_version(table, self._opened.get(table), version)
        return opened

    def _replace(
        self,
        spark: SparkSession,
        transaction: Transaction,
        rows: pa.Table,
        candidates: list[tuple[str, int]],
        stamp: CommitMetadata,
    ) -> None:
        """Put these rows in the place of those with the same keys. candidates: files that may hold such, with sizes."""
        keys, schema = self._write.keys, transaction.layout.schema
        if len(set(keys_of(rows, keys))) < len(rows):
            raise Refused("its transform makes several rows of one key")
        files = [(path, size, self._stored(path, transaction)) for path, size in (candidates if len(rows) else ())]
        rows = _without(rows, _unchanged(rows, [stored for _, _, stored in files], keys), keys)
        new = set(keys_of(rows, keys))
        removes, rest, updated = [], schema.empty_table(), 0
        for path, size, stored in files:
            kept = _without(stored, new, keys)
            if len(kept) == len(stored):
                continue
            updated += len(stored) - len(kept)
            removes.append(data_file.removal(path, size))
            rest = pa.concat_tables([rest, kept])
        parts = [pa.concat_tables([rest, rows])] if len(rest) <= MOST_ROWS_BESIDE else [rest, rows]
        adds = [data_file.write([part], self._target.path, transaction.layout).added() for part in parts if len(part)]
        metrics = {
            "operationNumSourceRows": len(rows),
            "numTargetRowsInserted": len(rows) - updated,
            "numTargetRowsUpdated": updated,
            "numTargetRowsDeleted": 0,
            "numTargetRowsCopied": len(rest),
            "numOutputRows": len(rows) + len(rest),
        }
        # A MERGE takes its stamp from the session.
        with commit.stamped(spark, asdict(stamp), {}):
            transaction.replace(adds, removes, (stamp.txn_app_id, stamp.batch), metrics)

    def _stored(self, path: str, transaction: Transaction) -> pa.Table:
        return data_file.conform(parquet.read_table(f"{self._target.path}/{path}"), transaction.layout)

    def _files(self, transaction: Transaction) -> list[tuple[str, int]]:
        """All files of the table, with their sizes."""
        actions = pa.table(self._open(self._table.name, transaction.read_version).get_add_actions())
        return _small(zip(actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist(), strict=True))

    def _candidates(self, transaction: Transaction, starts: Starts, by: Bucket) -> list[tuple[str, int]]:
        """The files, with their sizes, that may hold rows of these buckets, by their statistics."""
        actions = pa.table(self._open(self._table.name, transaction.read_version).get_add_actions(flatten=True))
        names = (f"min.{by.name}", f"max.{by.name}", f"null_count.{by.name}")
        bounds = [micros(actions, name) if name in actions.column_names else None for name in names[:2]]
        nulls = actions.column(names[2]).to_pylist() if names[2] in actions.column_names else None
        spans = _spans(starts, by.unit)
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
        return _small(found)


def _small(files: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    found = list(files)
    if sum(size for _, size in found) > MOST_REPLACED_BYTES:
        raise Refused("its rows lie in large files")
    return found


def _without(rows: pa.Table, keys: set[Key], columns: tuple[str, ...]) -> pa.Table:
    """Rows that have none of these keys. columns: of the keys."""
    return rows.filter(pa.array([key not in keys for key in keys_of(rows, columns)], pa.bool_())) if keys else rows


def _unchanged(rows: pa.Table, stored: list[pa.Table], keys: tuple[str, ...]) -> set[Key]:
    """The keys of rows that are stored as they are."""
    names = rows.column_names
    if not all(is_comparable(rows.schema.field(name).type) for name in names):
        return set()
    new = dict(zip(keys_of(rows, keys), keys_of(rows, names), strict=True))
    pairs = (zip(keys_of(part, keys), keys_of(part, names), strict=True) for part in stored)
    return {key for key, row in chain.from_iterable(pairs) if new.get(key) == row}


def _spans(starts: Starts, unit: str) -> list[tuple[int, int]]:
    """The buckets, and where they are many what lies between them, in microseconds since 1970."""
    spans = data_skipping.spans([start for start in starts if start is not None], data_skipping.UNIT_SECONDS[unit])
    return [(begin * 1_000_000, end * 1_000_000) for begin, end in spans]
