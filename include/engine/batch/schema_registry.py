"""A schema registry's header in front of a value: byte 0, then the id of its schema in four bytes, big-endian."""

from pyspark.sql import Column
from pyspark.sql import functions as F

HEADER_BYTES = 5


def schema_id(value: Column) -> Column:
    """The id that the header names; NULL where there is no header. No registry gives an id above 2^31 - 1."""
    number = F.conv(F.hex(F.substring(value, 2, HEADER_BYTES - 1)), 16, 10).try_cast("int")
    is_header = F.substring(value, 1, 1) == F.lit(b"\0")
    return F.when(is_header & (F.octet_length(value) >= HEADER_BYTES), number)


def payload(value: Column) -> Column:
    """What follows the header."""
    return F.substring(value, HEADER_BYTES + 1, 2**31 - 1)
