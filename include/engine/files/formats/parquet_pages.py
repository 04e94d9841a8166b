"""Reads where the columns of a Parquet file lie, and the heads of their pages, whose lengths Spark allocates.

Arrow reads the footer, too, but ends the process if the footer contradicts itself about a column.

The format: https://parquet.apache.org/docs/file-format/, in Thrift's compact protocol.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from operator import index
from typing import Any

import pyarrow

# Writers make pages of about a megabyte.
MOST_PAGE_BYTES = 256 * 2**20
HEAD_BYTES = 1024
# The length of the footer, and the magic bytes.
TAIL_BYTES = 8
# Types of Thrift's compact protocol.
STOP, TRUE, FALSE, BYTE, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = 0, 1, 2, 3, 7, 8, 9, 10, 11, 12
MOST_NESTED = 16
MOST_BITS = 64
NO_THRIFT = "a part of the Parquet file is damaged"


@dataclass(frozen=True)
class ColumnChunk:
    """A column of a row group. codec: its number in the format. begin: of its first page. bytes: of all its pages."""

    name: str
    codec: int
    begin: int
    bytes: int


def columns(file: pyarrow.NativeFile) -> list[ColumnChunk]:
    """Returns the columns of all row groups. Raises OSError for a damaged footer."""
    size = file.size()
    file.seek(size - TAIL_BYTES)
    length = int.from_bytes(file.read(TAIL_BYTES)[:4], "little")
    if not 0 < length <= size - TAIL_BYTES:
        raise OSError("its footer is larger than the file")
    file.seek(size - TAIL_BYTES - length)
    try:
        return list(_columns(_Reader(file.read(length)).struct()))
    except (LookupError, TypeError, AttributeError) as error:
        raise OSError("its footer is damaged") from error


def _columns(footer: dict[int, Any]) -> Iterator[ColumnChunk]:
    # The numbers are those of the fields in the format's definition.
    for group in footer.get(4, ()):
        for chunk in group[1]:
            column = chunk[3]
            codec, size, begin, dictionary = map(index, (column[4], column[7], column[9], column.get(11, 0)))
            name = b".".join(column[3]).decode(errors="replace")
            yield ColumnChunk(name, codec, dictionary if 0 < dictionary < begin else begin, size)


def require_bounds(file: pyarrow.NativeFile, chunk: ColumnChunk) -> None:
    """Raises OSError if a page is larger than the rest of its column, or decompressed than `MOST_PAGE_BYTES`.

    Spark would allocate that, and could end the driver.
    """
    try:
        _require_bounds(file, chunk)
    except (LookupError, TypeError, AttributeError) as error:
        raise OSError(f"a page of its column '{chunk.name}' is damaged") from error


def _require_bounds(file: pyarrow.NativeFile, chunk: ColumnChunk) -> None:
    at, end = chunk.begin, chunk.begin + chunk.bytes
    while at < end:
        head, length = _head(file, at, end)
        plain, encoded = head.get(2, -1), head.get(3, -1)
        at += length + encoded
        if encoded < 0 or at > end:
            raise OSError(f"a page of its column '{chunk.name}' is larger than the rest of the column")
        if not 0 <= plain <= MOST_PAGE_BYTES:
            raise OSError(
                f"a page of its column '{chunk.name}' claims {plain:,} bytes, and {MOST_PAGE_BYTES:,} are the most"
            )
        # Each value of a dictionary takes a byte at least.
        if not 0 <= (count := head.get(7, {}).get(1, 0)) <= plain:
            raise OSError(f"a dictionary of its column '{chunk.name}' claims {count:,} values in {plain:,} bytes")


def _head(file: pyarrow.NativeFile, at: int, end: int) -> tuple[dict[int, Any], int]:
    """Returns the head at this place, and its length. Raises OSError for a damaged one."""
    size = HEAD_BYTES
    while True:
        file.seek(at)
        reader = _Reader(file.read(min(size, end - at)))
        try:
            return reader.struct(), reader.at
        except IndexError:
            # Statistics may be long.
            if size >= end - at:
                raise OSError("a page of the Parquet file ends early") from None
            size *= 16


class _Reader:
    """Raises IndexError where the data ends, and OSError for what is no Thrift."""

    def __init__(self, data: bytes) -> None:
        self._data, self.at = data, 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Returns the values of a structure by the number of the field, without booleans."""
        fields: dict[int, Any] = {}
        field = 0
        while (head := self._byte()) & 0x0F != STOP:
            field = field + (head >> 4) if head >> 4 else self._integer()
            fields[field] = self._value(head & 0x0F, depth)
        return fields

    def _value(self, type_: int, depth: int, is_element: bool = False) -> Any:
        if depth > MOST_NESTED:
            raise OSError(NO_THRIFT)
        if type_ in (TRUE, FALSE):
            return self._byte() if is_element else None
        if type_ == BYTE:
            return self._byte()
        if type_ < DOUBLE:
            return self._integer()
        if type_ == DOUBLE:
            return self._bytes(8)
        if type_ == BINARY:
            return self._bytes(self._varint())
        if type_ in (LIST, SET):
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._varint()
            return [self._value(head & 0x0F, depth + 1, is_element=True) for _ in range(count)]
        if type_ == MAP:
            count = self._varint()
            types = self._byte() if count else 0
            return [self._value(part, depth + 1, True) for _ in range(count) for part in (types >> 4, types & 0x0F)]
        if type_ == STRUCT:
            return self.struct(depth + 1)
        raise OSError(NO_THRIFT)

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def _bytes(self, length: int) -> bytes:
        self.at += length
        if self.at > len(self._data):
            raise IndexError
        return self._data[self.at - length : self.at]

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
            if shift > MOST_BITS:
                raise OSError(NO_THRIFT)
        if (value := value | byte << shift) >> MOST_BITS:
            raise OSError(NO_THRIFT)
        return value

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
