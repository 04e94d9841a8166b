"""Reads what an object holds: its bytes, and what they are once they are decompressed and decoded."""

import gzip
import sqlite3
import zlib
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet
from pyarrow import orc

from include.lake.paths import LakePath

PART_BYTES = 16 * 2**20
TEXT = {".json", ".jsonl", ".ndjson", ".log", ".txt", ".csv", ".out", ".err", ".md", ".html", ".cfg", ".yaml", ".yml"}
SQLITE = b"SQLite format 3\0"
PARQUET, GZIP, ZSTD, ORC, LZ4_BLOCK = b"PAR1", b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"ORC", b"LZ4Block"
PACKED = (PARQUET, GZIP, ZSTD, ORC, LZ4_BLOCK)
# Formats whose content cannot be read here. Nobody can say what such an object holds.
OPAQUE = {".sst", ".zip", ".avro", ".7z", ".xz", ".bz2", ".snappy"}
BATCH_ROWS = 64 * 1024


class Unreadable(Exception):
    """str(): why nobody can say what the object holds, as a phrase."""


@dataclass(frozen=True)
class Part:
    """Bytes of an object. what: which part of it. is_text: whether words in it end where other characters begin."""

    what: str
    data: bytes
    is_text: bool


def parts(file: LakePath, overlap: int, numbers: Collection[str] = ()) -> Iterator[Part]:
    """Yields all that a file holds. overlap: bytes that neighbouring parts share. numbers: columns whose whole numbers
    count. In others, a number that looks like a subject is none.

    Raises Unreadable, and FileNotFoundError if it is gone.
    """
    suffixes = Path(file.name).suffixes
    suffix = suffixes[-1] if suffixes else ""
    try:
        with _opened(file) as content:
            head = content.read(16)
            content.seek(0)
            # Unpacked, nothing else is in these. In bytes of other formats, values may follow each other without a
            # border.
            if not head.startswith(PACKED):
                # Delta's checksums of a version are JSON, and Hadoop's of a file are not.
                is_text = suffix in TEXT or ".log" in suffixes or (suffix == ".crc" and head.startswith(b"{"))
                yield from (Part("bytes", data, is_text) for data in _overlapping(content.read, overlap))
                content.seek(0)
            if head.startswith(PARQUET):
                yield from _parquet(content, numbers)
            elif head.startswith(ORC):
                yield from _tables((pa.Table.from_batches([part]) for part in _stripes(content)), numbers)
            elif head.startswith(GZIP):
                with gzip.open(content) as unpacked:
                    yield from (Part("unpacked", data, True) for data in _overlapping(unpacked.read, overlap))
            elif head.startswith(ZSTD):
                with pa.CompressedInputStream(content, "zstd") as unpacked:
                    yield from (Part("unpacked", data, True) for data in _overlapping(unpacked.read, overlap))
            elif head.startswith(LZ4_BLOCK):
                yield Part("unpacked", _lz4_blocks(content.read()), False)
            elif head == SQLITE:
                yield from _sqlite(file, content)
            elif suffix in OPAQUE:
                raise Unreadable(f"no reader for {suffix} files is here")
    except (pa.ArrowException, gzip.BadGzipFile, EOFError, zlib.error, sqlite3.Error, ValueError) as error:
        raise Unreadable(f"it is damaged, or being written: {error}") from error


def _opened(file: LakePath) -> pa.NativeFile:
    """Opens a file; fetches an object with one request, and holds it in memory."""
    return pa.OSFile(str(file)) if isinstance(file, Path) else pa.BufferReader(file.read_bytes())


def _overlapping(read, overlap: int) -> Iterator[bytes]:  # type: ignore[no-untyped-def]
    end = b""
    while data := read(PART_BYTES):
        yield end + data
        end = (end + data)[-overlap:] if overlap else b""


def _parquet(file: pa.NativeFile, numbers: Collection[str]) -> Iterator[Part]:
    with parquet.ParquetFile(file, pre_buffer=False) as stored:
        yield Part("footer", b"\0".join(_footer(stored.metadata)), True)
        yield from _tables((pa.Table.from_batches([batch]) for batch in stored.iter_batches(BATCH_ROWS)), numbers)


def _footer(metadata: Any) -> Iterator[bytes]:
    for key, value in (metadata.metadata or {}).items():
        yield from (key, value)
    for group in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            statistics = metadata.row_group(group).column(column).statistics
            if statistics is not None and statistics.has_min_max:
                bounds = (statistics.min, statistics.max)
                yield from (bound for bound in bounds if isinstance(bound, bytes))
                yield from (bound.encode() for bound in bounds if isinstance(bound, str))


def _stripes(file: pa.NativeFile) -> Iterator[pa.RecordBatch]:
    stored = orc.ORCFile(file)
    for number in range(stored.nstripes):
        yield stored.read_stripe(number)


def _tables(tables: Iterator[pa.Table], numbers: Collection[str]) -> Iterator[Part]:
    for table in tables:
        for name in table.column_names:
            for values in table.column(name).chunks:
                yield from (Part(f"column {name}", data, True) for data in texts(values, name in numbers))


def texts(values: pa.Array, with_numbers: bool = False) -> Iterator[bytes]:
    """Yields the texts and bytes of a column, and of what is nested in it, each between zero bytes."""
    type_ = values.type
    if pa.types.is_dictionary(type_):
        yield from texts(values.dictionary_decode(), with_numbers)
    elif pa.types.is_struct(type_):
        for child in values.flatten():
            yield from texts(child, with_numbers)
    elif pa.types.is_map(type_):
        yield from texts(values.keys, with_numbers)
        yield from texts(values.items, with_numbers)
    elif pa.types.is_list(type_) or pa.types.is_large_list(type_):
        yield from texts(values.flatten(), with_numbers)
    elif with_numbers and (pa.types.is_integer(type_) or pa.types.is_decimal(type_)):
        yield _joined(values.cast(pa.string()).cast(pa.binary()))
    elif pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        yield _joined(values.cast(pa.large_string()).cast(pa.large_binary()))
    elif pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_fixed_size_binary(type_):
        yield _joined(values.cast(pa.large_binary()))


def _joined(values: pa.Array) -> bytes:
    values = pc.drop_null(values.cast(pa.large_binary()))
    if not len(values):
        return b""
    rows = pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), values)
    joined: bytes = pc.binary_join(rows, pa.scalar(b"\0", pa.large_binary()))[0].as_py()
    return joined


def _sqlite(file: LakePath, content: pa.NativeFile) -> Iterator[Part]:
    """The values of all tables. A value that its pages split is not in its bytes in one piece."""
    with closing(_database(file, content)) as database:
        database.text_factory = bytes
        names = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (name,) in names:
            quoted = name.decode().replace('"', '""')
            for row in database.execute(f'SELECT * FROM "{quoted}"'):
                cells = [cell if isinstance(cell, bytes) else str(cell).encode() for cell in row if cell is not None]
                yield Part(f"table {name.decode()}", b"\0".join(cells), True)


def _database(file: LakePath, content: pa.NativeFile) -> sqlite3.Connection:
    if isinstance(file, Path):
        # The file alone does not have what is still in its log.
        return sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=10)
    database = sqlite3.connect(":memory:")
    database.deserialize(content.read())
    return database


def _lz4_blocks(data: bytes) -> bytes:
    """Unpacks what Spark writes into checkpoints: blocks of lz4-java, each with a header of 21 bytes."""
    codec, unpacked, place = pa.Codec("lz4_raw"), [], 0
    while data.startswith(LZ4_BLOCK, place):
        method = data[place + 8] & 0xF0
        packed = int.from_bytes(data[place + 9 : place + 13], "little")
        size = int.from_bytes(data[place + 13 : place + 17], "little")
        place += 21
        block = data[place : place + packed]
        unpacked.append(block if method == 0x10 else codec.decompress(block, size, asbytes=True))
        place += packed
    return b"".join(unpacked)
