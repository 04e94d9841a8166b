"""Turns a text into a value: the one rule of each type, for all sources of texts.

A value is exact, or NULL: no digit is dropped, and no part of the text is passed over. A DOUBLE is the nearest one.
"""

from pyspark.sql import Column
from pyspark.sql import functions as F

from include.engine.values.once import once

INTEGERS = ("tinyint", "smallint", "int", "bigint")
# Spark would pass over control characters around these.
INTEGER = r"^\s*+[+-]?\d++\s*$"
BOOLEAN = r"^\s*+\w++\s*$"
# Most digits before and behind the point, so that no text makes a number of gigabytes.
MOST_DIGITS = 400
# A mantissa and an exponent: the sign, the digits before the point, those behind it, and the exponent.
WITH_EXPONENT = r"^\s*+([+-]?)(?=\.?\d)(\d{0,100})(?:\.(\d{0,100}))?[eE]([+-]?\d{1,2})\s*$"
# A number as SQL writes it. Java would also read `1d` and `0x1p3`.
FLOATING = r"^\s*+[+-]?(?:(?=\.?\d)\d*+(?:\.\d*+)?+(?:[eE][+-]?\d++)?+|(?i:nan|inf|infinity))\s*$"
# Other readers have no year 0. Spark would complete a time of day with today's date, so a replay tomorrow would differ.
DAY = r"(?!0000)\d{4}-\d{1,2}-\d{1,2}"
UTC = r"(?:Z|[+-]00(?::?00)?)"
# A date, or a time at its begin. Spark would ignore whatever follows a date.
DATE = rf"^\s*+{DAY}(?:[T ]00:00(?::00(?:\.0*)?)?{UTC}?)?\s*$"
# A date, or a time with up to six digits of a second, and zeros. Spark would drop further digits.
TIME = rf"{DAY}(?:[T ]\d{{1,2}}:\d{{1,2}}:\d{{1,2}}(?:\.\d{{0,6}}0*)?"
# Java's abbreviations mean other zones to many people: `BST` is in Dhaka, `AST` in Anchorage.
AMBIGUOUS = r"(?:A[CEGRS]T|B[ES]T|C[ANST]T|E[AC]T|I[ES]T|JST|MIT|N[ES]T|P[LNRS]T|[SV]ST)\s*$"
TIMESTAMP = rf"^\s*+{TIME}\s*(?:(?!z\s*$|{AMBIGUOUS})[A-Za-z+-][\w/:+-]*+)?)?\s*$"
# Without a zone there is no other one than UTC.
TIMESTAMP_NTZ = rf"^\s*+{TIME}{UTC}?)?\s*$"
# Forms of ISO 8601 that Spark does not read, each with the form that it reads.
ISO_FORMS = (
    (r"(?<=\d)t(?=\d)", "T"),
    (r"(?<=\d)z(?=\s*$)", "Z"),
    (r"^\s*+(\d{4})(\d{2})(\d{2})(?=T|\s*$)", "$1-$2-$3"),
    (rf"^\s*+({DAY}){UTC}(?=\s*$)", "$1"),
    (r"^\s*+([\d-]{10}T\d{2})(\d{2})(?=\D|$|\d{2}(?:\D|$))", "$1:$2"),
    (r"^\s*+([\d-]{10}T\d{2}:\d{2})(\d{2})(?=\D|$)", "$1:$2"),
    (r"^\s*+([\d-]{10}[T ]\d{2})(?![\d:.,])", "$1:00"),
    (r"^\s*+([\d-]{10}[T ]\d{2}:\d{2})(?![\d:.,])", "$1:00"),
    (r"^\s*+([\d-]{10}[T ]\d{2}:\d{2}:\d{2}),(?=\d)", "$1."),
)
# What all readers of a table know.
FIRST, LAST = "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"
TIMES = {"date": DATE, "timestamp": TIMESTAMP, "timestamp_ntz": TIMESTAMP_NTZ}


def cast(raw: Column, type_name: str) -> Column:
    """Returns the text as a value of a type; NULL if it is none.

    An integer may have zeros behind a point, or an exponent. A time is in the years 1 to 9999, in UTC, and without a
    zone is in UTC. A BINARY holds the bytes of the text.
    """
    if type_name in INTEGERS:
        integer = F.substring_index(_decimal_text(raw, 0), ".", 1)
        return F.coalesce(F.when(raw.rlike(INTEGER), raw).try_cast(type_name), integer.try_cast(type_name))
    if type_name.startswith("decimal"):
        scale = int(type_name.removesuffix(")").partition(",")[2])
        return _decimal_text(raw, scale).try_cast(type_name)
    if type_name in ("float", "double"):
        number = F.when(raw.rlike(FLOATING), raw).try_cast(type_name)
        # A number beyond the type becomes infinite.
        return F.when((F.abs(number) != float("inf")) | raw.rlike("(?i)inf"), number)
    if type_name in TIMES:
        return within_years(_iso_text(raw, TIMES[type_name]).try_cast(type_name), type_name)
    if type_name == "boolean":
        return F.when(raw.rlike(BOOLEAN), raw).try_cast(type_name)
    return raw.try_cast(type_name)


def binary(raw: Column, form: str) -> Column:
    """Returns the bytes that a text writes in a form of `BINARY_FORMS`; NULL unless it is how they are written."""
    if form == "hex":
        return once(F.try_to_binary(raw, F.lit("hex")), lambda content: F.when(F.hex(content) == F.upper(raw), content))
    text = F.translate(raw, "-_", "+/") if form == "base64-url-safe" else raw

    def exact(content: Column) -> Column:
        # Spark also reads spaces, and bits behind the last byte. It divides what it writes into lines.
        return F.when(F.translate(F.base64(content), "\r\n", "") == text, content)

    return once(F.try_to_binary(text, F.lit("base64")), exact)


def within_years(time: Column, type_name: str) -> Column:
    """Returns a date or a time if it lies in the years 1 to 9999, else NULL."""
    return F.when(time.between(F.lit(FIRST).cast(type_name), F.lit(LAST).cast(type_name)), time)


def _decimal_text(raw: Column, scale: int) -> Column:
    """Returns a number without an exponent; NULL or an empty text if more than `scale` digits follow its point."""
    shape = rf"^\s*+[+-]?(?=\.?\d)\d{{0,{MOST_DIGITS}}}(?:\.\d{{0,{scale}}}0{{0,{MOST_DIGITS}}})?\s*$"
    return F.when(raw.rlike(shape), raw).otherwise(F.regexp_extract(_without_exponent(raw), f"({shape})", 1))


def _without_exponent(raw: Column) -> Column:
    sign, whole, fraction, exponent = (F.regexp_extract(raw, WITH_EXPONENT, group) for group in (1, 2, 3, 4))
    zeros = "0" * 100
    digits = F.concat(F.lit(zeros), whole, fraction, F.lit(zeros))
    point = F.length(whole) + exponent.cast("int") + len(zeros)
    before, after = F.substring(digits, F.lit(1), point), F.substring(digits, point + 1, F.lit(1_000))
    plain = F.concat(sign, before, F.lit("."), after)
    return F.when(raw.rlike(WITH_EXPONENT), plain)


def _iso_text(raw: Column, shape: str) -> Column:
    """Returns a date or a time in a form that Spark reads; NULL or an empty text if it has not this shape then."""
    text = raw
    for form, replacement in ISO_FORMS:
        text = F.regexp_replace(text, F.lit(form), F.lit(replacement))
    return F.when(raw.rlike(shape), raw).otherwise(F.regexp_extract(text, f"({shape})", 1))
