"""Reads the schema from the header of an Avro file, and where its blocks end.

The format: https://avro.apache.org/docs/current/specification/, section "Object Container Files".
"""

import pyarrow

MAGIC = b"Obj\x01"
SCHEMA = b"avro.schema"
# A header has a schema and little else.
LONGEST_HEADER_BYTES = 10 * 2**20
LONGEST_INTEGER_BYTES = 10
SYNC_BYTES = 16


def schema(file: pyarrow.NativeFile, checks_blocks: bool) -> str:
    """Returns the schema as JSON. checks_blocks: look where each block ends, with a small read for each.

    Raises OSError if the file has no header, or a block that is larger than the rest of the file. Avro would allocate
    its size, and could end the JVM.
    """
    reader = _Reader(file.read(LONGEST_HEADER_BYTES))
    value = _metadata(reader).get(SCHEMA)
    if value is None:
        raise OSError("the header of the Avro file has no schema")
    if checks_blocks:
        _require_blocks(file, reader.at + SYNC_BYTES)
    return value.decode(errors="replace")


def _require_blocks(file: pyarrow.NativeFile, at: int) -> None:
    size = file.size()
    while at < size:
        file.seek(at)
        block = _Reader(file.read(2 * LONGEST_INTEGER_BYTES))
        block.integer()
        length = block.integer()
        at += block.at + length + SYNC_BYTES
        if length < 0 or at > size:
            raise OSError("a block of the Avro file is larger than the rest of the file")


def _metadata(header: "_Reader") -> dict[bytes, bytes]:
    if header.bytes(len(MAGIC)) != MAGIC:
        raise OSError("it is no Avro file")
    entries: dict[bytes, bytes] = {}
    while count := header.integer():
        if count < 0:
            # A negative count is followed by the size of the block.
            count, _ = -count, header.integer()
        for _ in range(count):
            name = header.bytes(header.integer())
            entries[name] = header.bytes(header.integer())
    return entries


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
        while True:
            [byte] = self.bytes(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7
