"""The header of Confluent's schema registry before a value: byte 0, then the schema id in four bytes, big-endian."""

from pyspark.sql import Column
from pyspark.sql import functions as F

HEADER_BYTES = 5


def schema_id(value: Column) -> Column:
    """Returns the id in the header; NULL if there is no header. Registries give no ids above 2^31 - 1."""
    registry_id = F.conv(F.hex(F.substring(value, 2, HEADER_BYTES - 1)), 16, 10).try_cast("int")
    is_header = F.substring(value, 1, 1) == F.lit(b"\0")
    return F.when(is_header & (F.octet_length(value) >= HEADER_BYTES), registry_id)


def payload(value: Column) -> Column:
    """Returns the bytes after the header."""
    return F.substring(value, HEADER_BYTES + 1, 2**31 - 1)
