"""Replaces stored rows of some keys: rewrites the files that hold them, in one commit."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from include.engine.commit import CommitMetadata
from include.engine.fast_path import data_file
from include.engine.fast_path.data_file import DataFile
from include.engine.fast_path.known_keys import Key, keys_of
from include.engine.fast_path.table_layout import Layout
from include.engine.fast_path.transaction import Transaction
from include.engine.rows.micro_batch import Refusal
from include.lake import clients, data_files

# Most bytes of files whose rows are all held in memory, and of files that are rewritten part by part.
MOST_REPLACED_BYTES, MOST_REWRITTEN_BYTES = 32_000_000, 4_000_000_000
# Rows of a file that are looked through at once.
PART_ROWS = 250_000
# Most rows of other keys that share a file with those of a batch. More get a separate file, which the next batches
# need not rewrite.
MOST_OTHER_ROWS = 1_000


@dataclass(frozen=True)
class StoredFile:
    """A file of the table that may hold rows of the keys. size: in bytes.

    rows: all its rows, or those of the keys if `others` is a new file with the other rows.
    """

    path: str
    size: int
    rows: pa.Table
    others: DataFile | None = None


def read(transaction: Transaction, files: Iterable[tuple[str, int]]) -> list[StoredFile] | Refusal:
    """Reads files of the target, given by path and size. Refuses large ones."""
    file_list = list(files)
    if sum(size for _, size in file_list) > MOST_REPLACED_BYTES:
        return Refusal("its rows lie in large files")
    target, layout = transaction.target, transaction.layout
    return [
        StoredFile(path, size, data_file.conform(parquet.read_table(data_files.readable(target.path / path)), layout))
        for path, size in file_list
    ]


def rewrite(
    transaction: Transaction, files: Iterable[tuple[str, int]], keys: set[Key], columns: tuple[str, ...]
) -> list[StoredFile] | Refusal:
    """Reads rows of these keys from files of any size, and writes the other rows of large files into new ones.

    Files without such rows are left out. Refuses files that are too large. The caller discards the new files if it does
    not commit them.
    """
    file_list = list(files)
    total_bytes = sum(size for _, size in file_list)
    if total_bytes <= MOST_REPLACED_BYTES:
        return read(transaction, file_list)
    if total_bytes > MOST_REWRITTEN_BYTES:
        return Refusal("its rows lie in too many large files")
    found: list[StoredFile] = []
    try:
        for path, size in file_list:
            file = parquet.ParquetFile(clients.seekable(transaction.target.path / path))
            if any(
                pc.any(_has_key(part, keys, columns, transaction.layout)).as_py()
                for part in _parts(file, list(columns))
            ):
                found.append(_split(transaction, path, size, file, keys, columns))
    except BaseException:
        discard(found)
        raise
    return found


@contextmanager
def discarded_on_error(stored: list[StoredFile]) -> Iterator[None]:
    """Deletes the new files if the block raises."""
    try:
        yield
    except BaseException:
        discard(stored)
        raise


def discard(stored: list[StoredFile]) -> None:
    """Deletes the new files."""
    for file in stored:
        if file.others:
            file.others.delete()


def _split(
    transaction: Transaction, path: str, size: int, file: parquet.ParquetFile, keys: set[Key], columns: tuple[str, ...]
) -> StoredFile:
    layout, of_keys = transaction.layout, [transaction.layout.schema.empty_table()]

    def others() -> Iterator[pa.Table]:
        for part in _parts(file, layout.schema.names):
            has_key = _has_key(part, keys, columns, layout)
            of_keys.append(data_file.conform(part.filter(has_key), layout))
            yield part.filter(pc.invert(has_key))

    new_file = data_file.write(others(), transaction.target.path, layout)
    return StoredFile(path, size, pa.concat_tables(of_keys), new_file)


def _parts(file: parquet.ParquetFile, columns: list[str]) -> Iterator[pa.Table]:
    # A column that was added later is missing in older files.
    names = [name for name in columns if name in file.schema_arrow.names]
    for batch in file.iter_batches(PART_ROWS, columns=names):
        part = pa.Table.from_batches([batch])
        for name in columns:
            if name not in names:
                part = part.append_column(name, pa.nulls(len(part)))
        yield part


def _has_key(rows: pa.Table, keys: set[Key], columns: tuple[str, ...], layout: Layout) -> pa.ChunkedArray:
    """Returns for each row whether it has one of these keys."""
    rows = pa.table({name: rows.column(name).cast(layout.schema.field(name).type) for name in columns})
    may_have = pc.is_in(rows.column(columns[0]), value_set=key_values(keys, 0, rows.schema.types[0]))
    for position in range(1, len(columns)):
        values = key_values(keys, position, rows.schema.types[position])
        may_have = pc.and_(may_have, pc.is_in(rows.column(position), value_set=values))
    # Python compares the few rows that are left, as it does everywhere else.
    indices = pc.indices_nonzero(may_have)
    candidates, places = keys_of(rows.take(indices), columns), indices.to_pylist()
    with_key = {place for place, key in zip(places, candidates, strict=True) if key in keys}
    if len(with_key) == len(places):
        return may_have
    return pa.chunked_array([pa.array([place in with_key for place in range(len(rows))], pa.bool_())])


def key_values(keys: set[Key], position: int, type_: pa.DataType) -> pa.Array:
    """Returns the values of one column of these keys. type_: of the column. Keys hold times and dates as integers."""
    values = list({key[position] for key in keys})
    if pa.types.is_timestamp(type_):
        return pa.array(values, pa.int64()).cast(pa.timestamp("us", "UTC")).cast(type_)
    return pa.array(values, pa.int32()).cast(type_) if pa.types.is_date32(type_) else pa.array(values, type_)


def with_keys(rows: pa.Table, keys: set[Key], columns: tuple[str, ...], are_kept: bool) -> pa.Table:
    """Returns the rows that have one of these keys, or those that have none. columns: of the keys."""
    return rows.filter(pa.array([(key in keys) == are_kept for key in keys_of(rows, columns)], pa.bool_()))


@dataclass(frozen=True)
class Replacement:
    """`rows` in place of all rows of these keys that the stored files hold. columns: of the keys.

    counts: the row counts of MERGE, but for copies.
    """

    stored: list[StoredFile]
    rows: pa.Table
    keys: set[Key]
    columns: tuple[str, ...]
    counts: dict[str, int]


def commit_replacement(transaction: Transaction, replacement: Replacement, metadata: CommitMetadata) -> None:
    """Commits the replacement as the batch."""
    rows, counts = replacement.rows, replacement.counts
    adds: list[dict[str, Any]] = []
    removes: list[dict[str, Any]] = []
    others = transaction.layout.schema.empty_table()
    copied = 0
    for file in replacement.stored if replacement.keys else []:
        if file.others:
            removes.append(data_file.removal(file.path, file.size))
            adds += [file.others.added()] if file.others.rows else []
            copied += file.others.rows
            continue
        other_rows = with_keys(file.rows, replacement.keys, replacement.columns, are_kept=False)
        if len(other_rows) < len(file.rows):
            removes.append(data_file.removal(file.path, file.size))
            others = pa.concat_tables([others, other_rows])
    parts = [pa.concat_tables([others, rows])] if len(others) <= MOST_OTHER_ROWS else [others, rows]
    path, layout = transaction.target.path, transaction.layout
    adds += [data_file.write([part], path, layout).added() for part in parts if len(part)]
    copied += len(others)
    # Some of `rows` may be as they were.
    copied += len(rows) - counts["numTargetRowsInserted"] - counts["numTargetRowsUpdated"]
    output_rows = counts["numTargetRowsInserted"] + counts["numTargetRowsUpdated"] + copied
    metrics = {**counts, "numTargetRowsCopied": copied, "numOutputRows": output_rows}
    transaction.replace(adds, removes, metadata.text, (metadata.txn_app_id, metadata.batch), metrics)
