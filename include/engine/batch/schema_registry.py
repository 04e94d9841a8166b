"""The header of Confluent's schema registry before a value: byte 0, then the schema id in four bytes, big-endian."""

from collections.abc import Iterable, Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F

HEADER_BYTES = 5
SHOWN_BYTES = 20


def schema_id(value: Column) -> Column:
    """Returns the id in the header; NULL if there is no header. Registries give no ids above 2^31 - 1."""
    registry_id = F.conv(F.hex(F.substring(value, 2, HEADER_BYTES - 1)), 16, 10).try_cast("int")
    is_header = F.substring(value, 1, 1) == F.lit(b"\0")
    return F.when(is_header & (F.octet_length(value) >= HEADER_BYTES), registry_id)


def payload(value: Column) -> Column:
    """Returns the bytes after the header."""
    return F.substring(value, HEADER_BYTES + 1, 2**31 - 1)


def sample(value: Column) -> Column:
    """Returns the first bytes as text."""
    return F.concat(F.lit("X'"), F.hex(F.substring(value, 1, SHOWN_BYTES)), F.lit("'"))


def problem(value: Column, known: Iterable[int], refused: Mapping[int, str], where: str) -> Column:
    """Returns why a value has no schema to read it with; NULL if it has one.

    known: the ids of schemas. refused: why some of them are not used. where: in which place others are missing.
    """
    id_of_value = schema_id(value)
    unknown = F.concat(F.lit("schema id "), id_of_value.cast("string"), F.lit(f" is not {where}"))
    message = F.when(id_of_value.isNull(), F.concat(sample(value), F.lit(" has no schema registry header")))
    message = message.when(~id_of_value.isin(list(known)), unknown)
    for refused_id, reason in refused.items():
        message = message.when(id_of_value == refused_id, f"schema id {refused_id} {reason}")
    return message
