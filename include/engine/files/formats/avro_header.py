"""Reads the schema from the header of an Avro file, and where its blocks end.

The format: https://avro.apache.org/docs/current/specification/, section "Object Container Files".
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow

from include.engine.files.formats.format import MOST_COLUMNS, too_many
from include.project.avro import AvroType, RefersToItself

MAGIC = b"Obj\x01"
# No name of a field.
ELEMENT = "*"
SCHEMA, CODEC = b"avro.schema", b"avro.codec"
CODECS = ("null", "deflate", "bzip2", "snappy", "zstandard", "xz")
# Records without bytes would be read for ever.
MOST_RECORDS_A_BYTE = 10_000
# A header has a schema and little else.
LONGEST_HEADER_BYTES = 10 * 2**20
MOST_ENTRIES = 10_000
LONGEST_INTEGER_BYTES = 10
SYNC_BYTES = 16


@dataclass(frozen=True)
class AvroHeader:
    """schema: as JSON. names: of its fields. nanoseconds: the places of times in nanoseconds, as `_nanoseconds` yields
    them.
    """

    schema: str
    names: tuple[str, ...]
    nanoseconds: frozenset[tuple[str, ...]]


def read(file: pyarrow.NativeFile, checks_blocks: bool) -> AvroHeader:
    """Returns the header. checks_blocks: look at the head of each block, with a small read for each.

    Raises OSError or ValueError if the file has no header, or what Spark reads no rows from. Also if a block is larger
    than the rest of the file: Avro would allocate its size, and could end the JVM.
    """
    reader = _Reader(file.read(LONGEST_HEADER_BYTES))
    metadata = _metadata(reader)
    if SCHEMA not in metadata:
        raise OSError("the header of the Avro file has no schema")
    codec = metadata.get(CODEC, b"null").decode(errors="replace")
    if codec not in CODECS:
        raise OSError(
            f"its blocks are compressed with {codec!r}, which is not read: write it with deflate or zstandard"
        )
    if checks_blocks:
        _require_blocks(file, reader.at + SYNC_BYTES)
    text = metadata[SCHEMA].decode(errors="replace")
    fields = _fields(text)
    sizes: dict[int, int] = {}
    if (columns := sum(_columns(type_, sizes) for type_ in fields.values())) > MOST_COLUMNS:
        raise OSError(too_many(columns))
    nanoseconds = {place for name, type_ in fields.items() for place in _nanoseconds(type_, (name,))}
    names = tuple(str(part["name"]) for part in json.loads(text).get("fields", ()))
    return AvroHeader(text, names, frozenset(nanoseconds))


def _fields(schema: str) -> dict[str, AvroType]:
    try:
        return dict(AvroType.of(schema).fields)
    except RefersToItself as error:
        raise OSError(f"its type {error} holds values of itself, and no column does: write them flat") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise OSError("the schema of the Avro file is none of a record, and so it has no columns") from error


def _columns(type_: AvroType, sizes: dict[int, int]) -> int:
    """Returns how many values without parts a value has. A few names may stand for billions.

    sizes: of the types seen before, which stay alive, by their identity.
    """
    if id(type_) not in sizes:
        parts = [*type_.branches, *type_.fields.values(), *filter(None, [type_.element])]
        sizes[id(type_)] = sum(_columns(part, sizes) for part in parts) if parts else 1
    return sizes[id(type_)]


def _nanoseconds(type_: AvroType, place: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yields the places of times in nanoseconds: names of fields, and `ELEMENT` for elements of an array or a map."""
    if type_.logical == "timestamp-nanos":
        yield place
    if type_.element:
        yield from _nanoseconds(type_.element, (*place, ELEMENT))
    for name, inner in type_.fields.items():
        yield from _nanoseconds(inner, (*place, name))


def _require_blocks(file: pyarrow.NativeFile, at: int) -> None:
    size, records = file.size(), 0
    while at < size:
        file.seek(at)
        block = _Reader(file.read(2 * LONGEST_INTEGER_BYTES))
        count = block.integer()
        length = block.integer()
        at += block.at + length + SYNC_BYTES
        if length < 0 or at > size:
            raise OSError("a block of the Avro file is larger than the rest of the file")
        records += count
        if count < 0 or records > MOST_RECORDS_A_BYTE * size:
            raise OSError(f"a block of the Avro file claims {count:,} records, which a file of its size cannot hold")


def _metadata(header: "_Reader") -> dict[bytes, bytes]:
    if header.bytes(len(MAGIC)) != MAGIC:
        raise OSError("it is no Avro file")
    metadata: dict[bytes, bytes] = {}
    entries = 0
    while count := header.integer():
        if count < 0:
            # A negative count is followed by the size of the block.
            count, _ = -count, header.integer()
        entries += count
        if entries > MOST_ENTRIES:
            raise OSError(f"the header of the Avro file has more than {MOST_ENTRIES:,} entries")
        for _ in range(count):
            name = header.bytes(header.integer())
            metadata[name] = header.bytes(header.integer())
    return metadata


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self.at = data, 0

    def bytes(self, length: int) -> bytes:
        value = self._data[self.at : self.at + length]
        if length < 0 or len(value) < length:
            raise OSError("the Avro file ends early")
        self.at += length
        return value

    def integer(self) -> int:
        """Reads a variable-length zig-zag integer."""
        value = shift = 0
        for _ in range(LONGEST_INTEGER_BYTES):
            [byte] = self.bytes(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7
        raise OSError(f"a number in the Avro file has more than {LONGEST_INTEGER_BYTES} bytes")
