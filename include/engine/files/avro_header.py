"""Reads the schema from the header of an Avro file.

The format: https://avro.apache.org/docs/current/specification/, section "Object Container Files".
"""

import pyarrow

MAGIC = b"Obj\x01"
SCHEMA = b"avro.schema"
# A header has a schema and little else.
LONGEST_HEADER_BYTES = 10 * 2**20


def schema(stream: pyarrow.NativeFile) -> str:
    """Returns the schema as JSON. Raises OSError if the file has no header."""
    header = _Header(stream.read(LONGEST_HEADER_BYTES))
    if header.bytes(len(MAGIC)) != MAGIC:
        raise OSError("it is no Avro file")
    while count := header.integer():
        if count < 0:
            # A negative count is followed by the size of the block.
            count, _ = -count, header.integer()
        for _ in range(count):
            name, value = header.bytes(header.integer()), header.bytes(header.integer())
            if name == SCHEMA:
                return value.decode(errors="replace")
    raise OSError("the header of the Avro file has no schema")


class _Header:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def bytes(self, length: int) -> bytes:
        value = self._data[self._at : self._at + length]
        if length < 0 or len(value) < length:
            raise OSError("the header of the Avro file ends early")
        self._at += length
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
