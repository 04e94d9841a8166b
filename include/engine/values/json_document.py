"""Reads a JSON document into the exact texts of its fields.

Spark makes a double of each number that is no integer and `?` of an escaped half of a surrogate pair, it stops after
the first document of a text, and it makes NULL of a field in which the document is broken. So this module puts numbers
into quotes, refuses such halves, writes a mark before and behind the document, which Spark must reach, and has Spark
tell whether anything was broken.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from include.engine.values.once import once

BYTE_ORDER_MARK = "\ufeff"
TEXTS = MapType(StringType(), StringType())
# Where Spark leaves the text of a document that is broken, and the array of the document between its marks.
BROKEN, BETWEEN_MARKS = "broken", "marked"
OPTIONS = {
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
    "columnNameOfCorruptRecord": BROKEN,
}
# The field of a mark. No column has this name.
MARK = "{}"
# Stands before a number that was put into quotes. Unicode reserves the character for use within programs.
NUMBER_MARK = "\ufdd0"
# Possessive quantifiers, and greedy ones of a single class, need no stack, however long the text is.
BETWEEN = r"[ \t\r\n{}\[\]:,]*"
PAIR = r"[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F]"
HALF_OR_MARK = r"[dD][89a-fA-F]|[fF][dD][dD]0"
EXACT_STRING = rf'"[^"\\{NUMBER_MARK}]*(?:"|(?:\\(?:[^u]|u(?:{PAIR}|(?!{HALF_OR_MARK})))[^"\\{NUMBER_MARK}]*)*+")'
# A double keeps the text of up to 15 digits from 0.001 to 9999999 without a trailing zero.
EXACT_NUMBER = (
    r"(?:(?!-?[0-9.]{17})-?(?:[1-9][0-9]{0,6}+|0(?=\.(?!000)))(?:\.(?:[0-9]*[1-9]|0))?+|0|-?[1-9][0-9]{7,800}+)"
    r"(?![0-9.eE])"
)
# Matches a document of which Spark changes no number and no character. It may miss one, which costs time only.
UNCHANGED = rf"^{BYTE_ORDER_MARK}?(?:{BETWEEN}(?:{EXACT_STRING}|{EXACT_NUMBER}|true|false|null))*+{BETWEEN}$"
# Matches, from the end of the last match on, what Spark does not change, and then a number or literal that is a value.
NUMBER = (
    rf'\G((?:{BETWEEN}(?:"[^"\\]*(?:"|(?:\\.[^"\\]*)*+")|{EXACT_NUMBER}|true|false|null))*+{BETWEEN})'
    r"(-?+(?:(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][-+]?+[0-9]++)?+|Infinity)|NaN)"
    r"(?=[ \t\r\n]*+[,\]}])"
)
QUOTED_NUMBER = f'$1"{NUMBER_MARK}$2"'
MARKED_NUMBER = f'"{NUMBER_MARK}([^"]*+)"|{NUMBER_MARK}'
# Matches a text in which each escaped surrogate is one of a pair, and that does not hold the mark.
WHOLE_CHARACTERS = rf"(?s)^(?:[^\\{NUMBER_MARK}]++|\\[^u]|\\u(?!{HALF_OR_MARK})|\\u{PAIR})*+$"


def read(rows: DataFrame, text: Column, name: str, type_: DataType = TEXTS) -> DataFrame:
    """Returns `rows` plus column `name`: the JSON object in `text`; NULL if it is none, or more than one document.

    type_: of STRING fields, and of maps, arrays and structures of such fields. Where it says STRING, an object or an
    array becomes its JSON. Of a structure, only the named fields are read. If an object repeats a key, the last one
    counts in a structure; a map has all, and `last_of_each_key` leaves the last ones.
    """
    type_ = StructType([*type_]).add(MARK, StringType()) if isinstance(type_, StructType) else type_
    result, mark = F.col(name), F.xxhash64(text).cast("string")
    content = without_byte_order_mark(text)
    quoted = F.regexp_replace(content, F.lit(NUMBER), F.lit(QUOTED_NUMBER))
    # No text holds its own hash, so none can end the array early and begin another one unnoticed.
    begin = F.concat(F.lit(f'{{"{BETWEEN_MARKS}":[{{"{MARK}":"'), mark, F.lit('"},'))
    end = F.concat(F.lit(f',{{"{MARK}":"'), mark)
    array = (
        F.when(~F.is_valid_utf8(text), None)
        .when(text.rlike(UNCHANGED), F.concat(begin, content, end, F.lit('"}]}')))
        .when(~_has_half(text), F.concat(begin, quoted, end, F.lit(f'{NUMBER_MARK}"}}]}}')))
    )
    schema = StructType().add(BETWEEN_MARKS, ArrayType(type_)).add(BROKEN, StringType())
    # This has a column, because Spark would evaluate an expression again wherever it is used.
    rows = rows.withColumn(name, F.from_json(array, schema, OPTIONS))
    items = result[BETWEEN_MARKS]
    first, document, last = (F.get(items, F.lit(place)) for place in range(3))
    exact = F.when(last[MARK] == mark, document).when(
        last[MARK] == F.concat(mark, F.lit(NUMBER_MARK)), _without_marks(document, type_)
    )
    is_whole = result[BROKEN].isNull() & (F.size(items) == 3) & (first[MARK] == mark)
    return rows.withColumn(name, F.when(is_whole, exact))


def problem(text: Column, no_object: str = " is no JSON object") -> Column:
    """Returns why `read` makes NULL of a text, to follow the text in a message."""
    return (
        F.when(~F.is_valid_utf8(text), F.lit(" is no UTF-8"))
        .when(_has_half(text), F.lit(" holds half of a surrogate pair, or the reserved character U+FDD0"))
        .otherwise(F.lit(no_object))
    )


def _has_half(text: Column) -> Column:
    """Whether a text holds half of a surrogate pair, or the mark."""
    return (text.contains("\\u") | text.contains(NUMBER_MARK)) & ~text.rlike(WHOLE_CHARACTERS)


def without_byte_order_mark(text: Column) -> Column:
    return F.when(text.startswith(BYTE_ORDER_MARK), F.substring(text, 2, 2**31 - 1)).otherwise(text)


def repeats_a_key(texts: Column) -> Column:
    keys = F.map_keys(texts)
    return F.size(keys) > F.size(F.array_distinct(keys))


def last_of_each_key(texts: Column) -> Column:
    """Returns a map without repeated keys, of which the last one counts, as in most readers of JSON."""
    places = F.transform(F.map_entries(texts), lambda entry, place: F.struct(entry["key"], place, entry["value"]))
    last = once(
        F.array_sort(places),
        lambda items: F.filter(
            items, lambda item, place: ~F.coalesce(F.get(items, place + 1)["key"] == item["key"], F.lit(False))
        ),
    )
    entries = F.transform(last, lambda item: F.struct(item["key"], item["value"]))
    return F.when(repeats_a_key(texts), F.map_from_entries(entries)).otherwise(texts)


def _without_marks(value: Column, type_: DataType) -> Column:
    match type_:
        case StructType():
            fields = [_without_marks(value[field.name], field.dataType).alias(field.name) for field in type_]
            return F.when(value.isNotNull(), F.struct(*fields))
        case MapType():
            return F.transform_values(value, lambda _, text: _without_marks(text, type_.valueType))
        case ArrayType():
            return F.transform(value, lambda item: _without_marks(item, type_.elementType))
        case _:
            unmarked = F.regexp_replace(value, F.lit(MARKED_NUMBER), F.lit("$1"))
            return F.when(value.contains(NUMBER_MARK), unmarked).otherwise(value)
