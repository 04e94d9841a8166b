"""Writes rows of a small batch into a companion of its table: the quarantine, or the retained changes."""

import json
from dataclasses import asdict

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import SparkSession

from include.delta import stored_table
from include.engine.fast_path import data_file
from include.engine.fast_path.features import NotSupported
from include.engine.fast_path.transaction import Target
from include.engine.tables import commit
from include.engine.tables.commit import CommitMetadata
from include.settings import settings
from include.spec.origin import FAILED_REASON, FAILED_RECORD

_TYPES = {
    "_flow": pa.string(),
    "_generation": pa.int32(),
    "_batch": pa.int64(),
    "_source": pa.string(),
    "_replay": pa.int64(),
}


class Companion:
    """A companion of a table, as one flow writes it. has_written: whether it holds rows of the flow's last batch."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self.name = name
        self.has_written = False
        self._spark = spark
        self._target: Target | None = None

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

    def begin(self, flow: str, left_before: tuple[int, int] | None) -> None:
        """Begins a batch. left_before: as for `Appender.append_checked`. Raises NotSupported if an earlier try of the
        batch has left rows.
        """
        self.has_written = False
        if left_before and settings().is_stored(self.name) and _holds_later(self.name, flow, left_before):
            raise NotSupported(f"an earlier try has left rows in {self.name}")

    def append(self, rows: pa.Table, metadata: CommitMetadata) -> None:
        """Appends rows of the batch, with at least the columns of the companion that do not describe the batch.

        Raises NotSupported if the companion is not stored, as for a table without rules until a row breaks one that its
        columns imply.
        """
        if not len(rows):
            return
        if self._target is None and not settings().is_stored(self.name):
            raise NotSupported(f"{self.name} is not stored yet")
        transaction = self._opened.begin()
        for column, value in commit.quarantine_columns(asdict(metadata)).items():
            rows = rows.append_column(column, pa.array([value] * len(rows), _TYPES[column]))
        for column in (FAILED_REASON, FAILED_RECORD):
            rows = rows.append_column(column, pa.nulls(len(rows), pa.string()))
        file = data_file.write([rows], transaction.target.path, transaction.layout)
        self.has_written = True
        transaction.append([file.added()], json.dumps(asdict(metadata)), None, file.rows, reads=False)


def _holds_later(name: str, flow: str, left_before: tuple[int, int]) -> bool:
    generation, batch = ds.field("_generation"), ds.field("_batch")
    later = (generation > left_before[0]) | ((generation == left_before[0]) & (batch > left_before[1]))
    return bool(len(stored_table.dataset(name).scanner(filter=(ds.field("_flow") == flow) & later).head(1)))
