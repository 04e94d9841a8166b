"""Finds the retained changes of the keys of a small batch, without a scan of all retained changes for each batch."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from include.delta import stored_table
from include.engine.batch import table_rows
from include.engine.batch.merge_changes import TRUNCATES
from include.engine.fast_path import replaced_files, table_at_version
from include.engine.fast_path.companion import Companion
from include.engine.fast_path.known_keys import Key
from include.engine.tables.commit import CommitMetadata
from include.spec import Table, Upsert

# Most bytes of retained changes in memory, about four million deletes. More are read again for each batch.
MOST_BYTES = 128_000_000
# So many additions are put together, because each is looked through by itself.
MOST_PARTS = 50


class Retained:
    """The retained changes of one table, which one flow writes. Keeps them in memory at the version it has read."""

    def __init__(self, table: Table, write: Upsert, companion: Companion) -> None:
        self._table = table
        self._write = write
        self._companion = companion
        self._open_table: DeltaTable | None = None
        self._version: int | None = None
        # None: they are too many.
        self._rows: pa.Table | None = None

    def of_keys(self, keys: set[Key], last_commit: tuple[int, int] | None) -> pa.Table:
        """Returns what committed batches have retained: changes of these keys, and truncates.

        last_commit: generation and batch of the flow's newest commit.
        """
        self._read(last_commit)
        name = self._write.keys[0]
        if self._rows is None:
            dataset, names = self._dataset()
            may_count = ds.field(name).isin(replaced_files.key_values(keys, 0, dataset.schema.field(name).type))
            if self._write.truncates:
                may_count |= ds.field(TRUNCATES)
            rows = dataset.to_table(columns=names, filter=_is_committed(last_commit) & may_count)
        else:
            values = replaced_files.key_values(keys, 0, self._rows.schema.field(name).type)
            mask = pc.is_in(self._rows.column(name), value_set=values)
            if self._write.truncates:
                mask = pc.or_(mask, pc.fill_null(self._rows.column(TRUNCATES), False))
            rows = self._rows.filter(mask)
        of_keys = replaced_files.with_keys(rows, keys, self._write.keys, are_kept=True)
        return pa.concat_tables([of_keys, rows.filter(pc.field(TRUNCATES))]) if self._write.truncates else of_keys

    def append(self, rows: pa.Table, metadata: CommitMetadata) -> None:
        """Retains changes of the batch."""
        known, self._version = self._version, None
        if not len(rows):
            self._version = known
            return
        self._companion.append(rows, metadata)
        committed = self._companion.committed
        if known is not None and committed == known + 1:
            if self._rows is not None:
                added = rows.select(self._rows.column_names).cast(self._rows.schema)
                self._rows = pa.concat_tables([self._rows, added])
                if self._rows.column(0).num_chunks > MOST_PARTS:
                    self._rows = self._rows.combine_chunks()
            self._version = committed

    def forget(self) -> None:
        """Discards what it knows of the table, which may be outdated."""
        self._version, self._rows = None, None

    def _read(self, last_commit: tuple[int, int] | None) -> None:
        """Reads the newest version, unless it is known."""
        version = self._companion.version
        if version == self._version and (self._rows is None or self._rows.nbytes <= MOST_BYTES):
            return
        self.forget()
        self._open_table = table_at_version.at_version(self._table.retained, self._open_table, version)
        dataset, names = self._dataset()
        # Other rows are those of a batch that failed. Its next try replaces them, which is another version.
        scanner = dataset.scanner(columns=names, filter=_is_committed(last_commit))
        batches, size = [], 0
        for batch in scanner.to_batches():
            batches.append(batch)
            size += batch.nbytes
            if size > MOST_BYTES:
                break
        else:
            self._rows = pa.Table.from_batches(batches, scanner.projected_schema).combine_chunks()
        self._version = version

    def _dataset(self) -> tuple[Any, list[str]]:
        """Returns the table as read, and the names of its columns that count. Older releases have stored more."""
        dataset = stored_table.dataset(self._table.retained, self._open_table)
        return dataset, table_rows.names_of_retained(self._table)


def _is_committed(last_commit: tuple[int, int] | None) -> Any:
    generation, batch = last_commit or (0, 0)
    of_generation, of_batch = ds.field("_generation"), ds.field("_batch")
    return (of_generation < generation) | ((of_generation == generation) & (of_batch <= batch))
