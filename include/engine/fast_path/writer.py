"""What each write mode of the fast path is asked, and the companions that a batch fills before its table."""

from dataclasses import asdict

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import SparkSession

from include.delta import stored_table
from include.engine import commit
from include.engine.commit import CommitMetadata
from include.engine.fast_path import data_file
from include.engine.fast_path.transaction import Target, Transaction
from include.engine.rows.micro_batch import MicroBatch, Refusal, Written
from include.engine.sources.reader import PlannedRead
from include.lake import locations
from include.spec import Flow
from include.spec.origin import FAILED_REASON, FAILED_RECORD

_TYPES = {
    "_flow": pa.string(),
    "_generation": pa.int32(),
    "_batch": pa.int64(),
    "_source": pa.string(),
    "_replay": pa.int64(),
}


class Writer:
    """Writes the small batches of one flow, in one write mode."""

    def __init__(self, spark: SparkSession, table: Flow) -> None:
        self._spark = spark
        self._table = table
        self.target = Target(spark, table.name)
        self.companions: tuple[Companion, ...] = ()

    @staticmethod
    def suits(table: Flow) -> bool:
        """Whether this is how the table is written."""
        raise NotImplementedError

    def write(self, batch: MicroBatch, planned: PlannedRead) -> Written | Refusal:
        """Writes the batch: first the companions, then the table. Repeating it changes nothing. Or refuses it before
        any of it is written.

        planned: what it reads. Raises FlowBroken for rows that break a rule of action `fail`.
        """
        raise NotImplementedError

    def forget(self) -> None:
        """Discards what it knows of the table, which may be outdated."""
        self.target.note(None)

    def _begin(self, metadata: CommitMetadata) -> Transaction | Refusal | None:
        """Begins the commit of the batch; None if the table holds it already."""
        transaction = self.target.begin()
        if isinstance(transaction, Refusal):
            return transaction
        return None if transaction.last_batch(metadata.txn_app_id) >= metadata.batch else transaction


class Companion:
    """A companion of a table, as one flow writes it: the quarantine, or the retained changes.

    has_written: whether it holds rows of the flow's last batch.
    """

    def __init__(self, spark: SparkSession, name: str) -> None:
        self.name = name
        self.has_written = False
        self._spark = spark
        self._target: Target | None = None
        self._transaction: Transaction | None = None

    @property
    def version(self) -> int:
        """The newest version of the companion."""
        return self._opened.version

    @property
    def committed(self) -> int | None:
        """The version that it has committed, if no other writer can have come in between."""
        return self._opened.committed

    @property
    def _opened(self) -> Target:
        if self._target is None:
            self._target = Target(self._spark, self.name)
        return self._target

    def refusal(self, batch: MicroBatch) -> Refusal | None:
        """Refuses a batch of which an earlier try has left rows here."""
        if (
            batch.may_be_replay
            and locations.is_stored(self.name)
            and _holds_later(self.name, batch.metadata.flow, batch.last_commit)
        ):
            return Refusal(f"an earlier try has left rows in {self.name}")
        return None

    def begin(self, rows: pa.Table) -> Refusal | None:
        """Begins to append these rows, if there are any. Refuses them if the companion is not stored, as for a table
        without rules until a row breaks one that its columns imply.
        """
        self._transaction = None
        if not len(rows):
            return None
        if self._target is None and not locations.is_stored(self.name):
            return Refusal(f"{self.name} is not stored yet")
        transaction = self._opened.begin()
        if isinstance(transaction, Refusal):
            return transaction
        self._transaction = transaction
        return None

    def append(self, rows: pa.Table, metadata: CommitMetadata) -> None:
        """Appends the rows with which it has begun. They have at least the columns of the companion that do not
        describe the batch.
        """
        if self._transaction is None:
            return
        for column, value in commit.quarantine_columns(asdict(metadata)).items():
            rows = rows.append_column(column, pa.array([value] * len(rows), _TYPES[column]))
        for column in (FAILED_REASON, FAILED_RECORD):
            rows = rows.append_column(column, pa.nulls(len(rows), pa.string()))
        file = data_file.write([rows], self._transaction.target.path, self._transaction.layout)
        self.has_written = True
        self._transaction.append([file.added()], metadata.text, None, file.rows, reads=False)


def is_committed(last_commit: tuple[int, int] | None) -> ds.Expression:
    """Whether a row of a companion is of a committed batch. last_commit: as of `MicroBatch`."""
    generation, batch = last_commit or (0, 0)
    of_generation, of_batch = ds.field("_generation"), ds.field("_batch")
    return (of_generation < generation) | ((of_generation == generation) & (of_batch <= batch))


def _holds_later(name: str, flow: str, last_commit: tuple[int, int] | None) -> bool:
    later = (ds.field("_flow") == flow) & ~is_committed(last_commit)
    return bool(len(stored_table.dataset(name).scanner(filter=later).head(1)))
