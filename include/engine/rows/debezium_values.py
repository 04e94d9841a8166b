"""Types the values of a Debezium event: by the schema in the event where it has one, else by declaration.

The forms: https://debezium.io/documentation/reference/stable/connectors/postgresql.html, section "Data type mappings".
"""

import base64
import hashlib
import json
import uuid
from collections.abc import Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DateType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from include.engine.values.cast import binary, cast
from include.engine.values.once import once
from include.spec import Debezium

# A field of the row in the schema of an event.
FIELD = "STRUCT<field: STRING, name: STRING, type: STRING, parameters: MAP<STRING, STRING>>"
DECIMAL, VARIABLE_SCALE = "org.apache.kafka.connect.data.Decimal", "io.debezium.data.VariableScaleDecimal"
BITS = "io.debezium.data.Bits"
DAY = 86_400_000_000
# Microseconds of a unit of integer times. A nanosecond is less, and has none.
NANOS = 0
UNITS = {"micros": 1, "millis": 1_000, "nanos": NANOS, "days": DAY}
# The unit of integers by the name of their type.
TIMES = {
    "io.debezium.time.Date": DAY,
    "io.debezium.time.Timestamp": UNITS["millis"],
    "io.debezium.time.MicroTimestamp": UNITS["micros"],
    "io.debezium.time.NanoTimestamp": NANOS,
    "org.apache.kafka.connect.data.Date": DAY,
    "org.apache.kafka.connect.data.Timestamp": UNITS["millis"],
}
# Integers of other types of these are no instants: times of day, years, durations.
NAMED = r"^(?:io\.debezium\.|org\.apache\.kafka\.connect\.)"
INTEGER = r"^\s*+[+-]?\d++\s*$"
# What Connect may write of bytes, in base64, and Debezium of no number. Nothing tells what `1234` is.
NO_NUMBER = r"^(?=(?:.{4})++$)(?:\+|0\d|\d++(?:[eE]|e\+)\d)[A-Za-z0-9+/]*+$"
# The years 1 to 9999, which all readers know, in microseconds since 1970.
FIRST, LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
MOST_DIGITS = 38
# What may be hex, as Debezium writes it.
MAYBE_HEX = r"^[0-9a-f]++$"
FORM_UNKNOWN = " in base64, or may be hex: declare which, by binary"
# Of PostGIS, for a geometry and for a geography that were not sent.
UNSENT_SHAPES = (
    "0101000020E6100000000000FC83D797C1000000FC83D797C1",
    "0101000020E61000000C21E7FDFF7F66401842CEFBFF7F5640",
)


def value(
    raw: Column, field: Column, name: str, type_: DataType, parse: Debezium, is_described: Column, is_text: Column
) -> Column:
    """Returns a value of the column's type; NULL if the text is none.

    raw: as `decoded` returns it. field: a `FIELD`, or NULL. is_described: whether the event has its schema. is_text:
    whether a time is a string in the event.
    """
    type_name = type_.simpleString()
    match type_:
        case TimestampType() | TimestampNTZType() | DateType():
            at = micros(F.when(~is_text, raw), _unit(field, name, type_, parse))
            if type_ == DateType():
                at = F.when(F.pmod(at, F.lit(DAY)) == 0, at)
            text = F.when(is_text | ~raw.rlike(INTEGER), raw)
            return F.coalesce(F.timestamp_micros(at).cast(type_name), cast(text, type_name))
        case BinaryType():
            return _binary(raw, field, parse)
        case NumericType():
            return cast(F.when(is_described | ~raw.rlike(NO_NUMBER), raw), type_name)
        case _:
            return cast(raw, type_name)


def decoded(row: Column, fields: Column, schema: StructType, parse: Debezium) -> Column:
    """Returns the row with plain text for numbers that are sent as bytes. fields: those with a named type."""
    numbers = [name for name in parse.into if isinstance(schema[name].dataType, NumericType)]
    texts = [name for name in parse.into if isinstance(schema[name].dataType, StringType)]
    if not numbers and not texts:
        return row

    def text(name: Column, raw: Column) -> Column:
        field = F.get(F.filter(fields, lambda item: item["field"] == name), F.lit(0))
        is_decimal = name.isin(*numbers, *texts) & field["name"].isin(DECIMAL, VARIABLE_SCALE)
        is_decimal = F.coalesce(is_decimal, F.lit(False)) | (name.isin(*numbers) & raw.startswith("{"))
        is_bits = name.isin(*numbers) & (field["name"] == BITS)
        return F.coalesce(F.when(is_decimal, decimal_text(raw, field)).when(is_bits, _bits(raw)), raw)

    # Most events have no such value, and Spark generates no code for what follows.
    has_objects = F.exists(F.map_values(row), lambda raw: raw.startswith("{")) if numbers else F.lit(False)
    return F.when((F.size(fields) > 0) | has_objects, F.transform_values(row, text)).otherwise(row)


def micros(raw: Column, unit: Column) -> Column:
    """Returns an integer time in microseconds since 1970; NULL if it is no integer, lies between two of them, or is
    outside the years 1 to 9999.

    unit: in microseconds, `NANOS` for nanoseconds.
    """
    number = F.when(raw.rlike(r"^-?\d{1,19}$"), raw).try_cast("bigint")
    nanos = F.when(F.pmod(number, F.lit(1_000)) == 0, F.call_function("div", number, F.lit(1_000)))
    at = F.when(unit == NANOS, nanos).otherwise(F.try_multiply(number, unit))
    return F.when(at.between(FIRST, LAST), at)


def decimal_text(raw: Column, field: Column) -> Column:
    """Returns the digits of a decimal that is sent as bytes, in base64; NULL if it has too many, or is none.

    The bytes are an integer. Its scale is in the schema, or beside the bytes where it varies by row.
    """
    varies = raw.startswith("{")
    scale = F.when(varies, F.get_json_object(raw, "$.scale")).otherwise(field["parameters"]["scale"]).try_cast("int")
    content = binary(F.when(varies, F.get_json_object(raw, "$.value")).otherwise(raw), "base64")
    integer = once(F.hex(content), _signed_integer)
    return once(
        scale,
        lambda scale: F.when(
            scale.between(-MOST_DIGITS, MOST_DIGITS), once(integer, lambda integer: _with_point(integer, scale))
        ),
    )


def _signed_integer(digits: Column) -> Column:
    """Returns the integer of up to 16 bytes as text; NULL if it has more than 38 digits. digits: hexadecimal."""
    is_negative = F.substring(digits, 1, 1) >= "8"
    # Of a negative number all bits are inverted, which leaves one less than its amount.
    bits = F.when(is_negative, F.translate(digits, "0123456789ABCDEF", "FEDCBA9876543210")).otherwise(digits)
    return once(
        F.lpad(F.when(F.length(digits).between(2, 32), bits), 32, "0"),
        lambda bits: once(
            _amount(bits),
            lambda amount: F.when(is_negative, F.concat(F.lit("-"), _next(amount).cast("string"))).otherwise(
                amount.cast("string")
            ),
        ),
    )


def _amount(bits: Column) -> Column:
    parts = [F.conv(F.substring(bits, first, 8), 16, 10).try_cast("decimal(20,0)") for first in (1, 9, 17, 25)]
    amount = parts[0]
    for part in parts[1:]:
        amount = F.try_add(F.try_multiply(amount, F.lit(2**32).cast("decimal(10,0)")).try_cast("decimal(38,0)"), part)
        amount = amount.try_cast("decimal(38,0)")
    return amount


def _next(amount: Column) -> Column:
    return F.try_add(amount, F.lit(1).cast("decimal(1,0)")).try_cast("decimal(38,0)")


def _with_point(integer: Column, scale: Column) -> Column:
    """Returns the text of an integer as a number with these decimal places, or zeros behind it."""
    sign, amount = F.regexp_extract(integer, "^(-?)", 1), F.regexp_replace(integer, "^-", "")
    text = F.concat(amount, F.repeat(F.lit("0"), F.greatest(F.lit(0), -scale)))
    padded = F.lpad(text, F.greatest(F.length(text), scale + 1), F.lit("0"))
    with_point = F.concat(F.left(padded, F.length(padded) - scale), F.lit("."), F.right(padded, scale))
    return F.concat(sign, F.when(scale > 0, with_point).otherwise(text))


class Placeholder:
    """What stands for a value that the database did not send, in each form that Debezium gives it."""

    def __init__(self, placeholder: str) -> None:
        texts, documents = _texts(placeholder), _documents(placeholder)
        self._texts = texts
        self._documents = F.array(*[F.lit(document) for document in documents])

    def matches(self, raw: Column) -> Column:
        """Whether the text of a value is the placeholder."""
        is_document = raw.startswith("[") | raw.startswith("{")
        compact = F.regexp_replace(raw, r"\s+", "")
        return F.when(is_document, F.array_contains(self._documents, compact)).otherwise(raw.isin(*self._texts))


def _unit(field: Column, name: str, type_: DataType, parse: Debezium) -> Column:
    """Returns the unit of an integer time, in microseconds; NULL if its type in the schema is no time."""
    unit = parse.integer_times
    if isinstance(unit, Mapping):
        unit = unit.get(name, "days" if isinstance(type_, DateType) else "micros")
    elif isinstance(type_, DateType):
        unit = "days"
    by_name = F.when(F.lit(False), F.lit(0).cast("bigint"))
    for size in dict.fromkeys(TIMES.values()):
        by_name = by_name.when(field["name"].isin(*[known for known, of in TIMES.items() if of == size]), F.lit(size))
    by_name = by_name.when(field["name"].rlike(NAMED), F.lit(None))
    return by_name.otherwise(F.lit(UNITS[unit])).cast("bigint")


def _bits(raw: Column) -> Column:
    """Returns the number of up to 63 bits, whose bytes are sent from the last to the first."""
    pairs = F.regexp_extract_all(F.hex(binary(raw, "base64")), F.lit("(..)"), 1)
    return F.conv(F.array_join(F.reverse(F.when(F.size(pairs) <= 8, pairs)), ""), 16, 10)


def _binary(raw: Column, field: Column, parse: Debezium) -> Column:
    in_base64 = binary(raw, "base64")
    declared = F.when(~raw.rlike(MAYBE_HEX), in_base64) if parse.binary is None else binary(raw, parse.binary)
    shape = binary(F.get_json_object(raw, "$.wkb"), "base64")
    # A text in one of the forms has the type `string` in the schema. Connect writes `bytes` in base64.
    return F.when(raw.startswith("{"), shape).when(field["type"] == "bytes", in_base64).otherwise(declared)


def _texts(placeholder: str) -> list[str]:
    content = placeholder.encode()
    digest = uuid.UUID(bytes=hashlib.md5(content, usedforsecurity=False).digest(), version=3)
    base64s = [encode(content).decode() for encode in (base64.b64encode, base64.urlsafe_b64encode)]
    return list(dict.fromkeys([placeholder, *base64s, content.hex(), content.hex().upper(), str(digest)]))


def _documents(placeholder: str) -> list[str]:
    """Returns the placeholder inside JSON, without whitespace: as the elements of an array, a byte each, and so on."""
    signed = [byte - 256 if byte > 127 else byte for byte in placeholder.encode()]
    encoded = [base64.b64encode(bytes([byte])).decode() for byte in placeholder.encode()]
    documents = [
        *([text] for text in _texts(placeholder)),
        {placeholder: placeholder},
        signed,
        [float(byte) for byte in signed],
        encoded,
        [{"scale": 0, "value": byte} for byte in encoded],
    ]
    for shape in UNSENT_SHAPES:
        wkb = base64.b64encode(bytes.fromhex(shape)).decode()
        documents += [{"wkb": wkb, "srid": 4326}, {"srid": 4326, "wkb": wkb}]
    texts = [json.dumps(document, ensure_ascii=is_ascii) for document in documents for is_ascii in (True, False)]
    return list(dict.fromkeys("".join(text.split()) for text in texts))
