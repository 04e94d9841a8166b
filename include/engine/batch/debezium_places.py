"""Where a change of a database lies among the others, as one value that orders them."""

from functools import reduce
from operator import and_, or_

from pyspark.sql import Column
from pyspark.sql import functions as F

from include.spec import Debezium

# The rows of a snapshot without a place lie before all changes, and among each other in the order of their time.
SNAPSHOT_BIGINT = 1_000_000_000_000_000
SNAPSHOT_STRING = "!"
# Lower than each character of a place.
BETWEEN_FIELDS = " "
# Hexadecimal places: `0/16B3748` of PostgreSQL, `00000027:00000ac0:0002` of SQL Server.
HEX_PLACE = r"^[0-9A-Fa-f]{1,16}([:/][0-9A-Fa-f]{1,16})+$"
# More than 20 digits do not occur, and could not be compared.
TOO_LONG = r"[1-9]\d{20}"


def place(source: Column, parse: Debezium, type_name: str, is_snapshot: Column) -> Column:
    """Returns the place of a change, as BIGINT or as STRING; NULL if its fields are missing, or are no place.

    source: the fields of the event's source as text, and `ts_ms`.
    """
    fields = [field(source, name) for name in parse.places]
    is_missing = reduce(or_, [text.isNull() for text in fields])
    time = F.least(F.coalesce(field(source, "ts_ms").try_cast("bigint"), F.lit(0)), F.lit(SNAPSHOT_BIGINT - 1))
    if type_name == "bigint":
        at, snapshot = _number(fields[0]), time - F.lit(SNAPSHOT_BIGINT)
    else:
        texts = [_ordered(text) for text in fields]
        is_whole = reduce(and_, [text.isNotNull() for text in texts])
        at = F.when(is_whole, F.concat_ws(BETWEEN_FIELDS, *texts))
        snapshot = F.concat(F.lit(SNAPSHOT_STRING), F.lpad(time.cast("string"), 20, "0"))
    return F.when(is_missing & is_snapshot, snapshot).otherwise(at)


def field(source: Column, name: str) -> Column:
    """Returns a field of `source`; NULL if it is missing, or empty as in a snapshot."""
    return F.when(source[name] != "", source[name])


def _number(text: Column) -> Column:
    """Returns the number, or the one that a place of PostgreSQL such as `0/16B3748` stands for."""
    halves = [F.lpad(F.regexp_extract(text, rf"^{half}$", 1), 8, "0") for half in (r"(\w+)/\w+", r"\w+/(\w+)")]
    is_lsn = text.rlike(r"^[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}$")
    number = F.when(is_lsn, F.conv(F.concat(*halves), 16, 10)).when(text.rlike(r"^-?\d{1,19}$"), text)
    return number.try_cast("bigint")


def _ordered(text: Column) -> Column:
    """Returns a text that orders as its numbers do, hexadecimal or decimal: `bin.999` before `bin.1000`."""
    plain = F.regexp_replace(F.regexp_replace(text, r'[\[\]"\s]', ""), "null", "")
    is_hex = plain.rlike(HEX_PLACE)
    hex_places = _padded(F.lower(plain), "[0-9a-f]", 16)
    return F.when(is_hex, hex_places).when(~plain.rlike(TOO_LONG), _padded(plain, r"\d", 20))


def _padded(text: Column, digit: str, width: int) -> Column:
    """Returns the text with all of its numbers at this width."""
    long = F.regexp_replace(text, rf"({digit}+)", "0" * width + "$1")
    return F.regexp_replace(long, rf"{digit}*({digit}{{{width}}})(?!{digit})", "$1")
