"""Rules that a row has to meet to be stored: what its columns say of themselves, and what readers of Delta know."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from include.delta import stored_table
from include.engine import sql_text, struct_type
from include.rules import SUPPRESSED, Expect, Rule
from include.spec import Table
from include.spec.origin import FAILED_RECORD

# Python, Arrow and most readers of Delta know only these years.
TIMES = "times within the years 1 to 9999"
NOT_NULL = "values in columns that are NOT NULL"
CONSTRAINT = "delta.constraints."
# Kafka's Java client puts U+FFFD in the place of bytes that are no UTF-8, and hands out nothing else.
HEADERS = Expect(
    "names of headers in UTF-8", "coalesce(NOT exists(headers, h -> contains(h.key, '\ufffd')), true)", implied=True
)
FIRST, LAST = "0001-01-01", "9999-12-31"
FOLDERS = "text of partitions that names a folder"
# Longest name of a folder in most file systems. Spark writes these characters in it as % and two digits.
MOST_BYTES, ESCAPED = 255, r"""[\x01-\x1F"#%'*/:=?\\\x7F{\[\]^]"""
# Delta stores NULL for these texts of partitions. A key with one would never equal the stored one.
STORED_AS_NULL = ("", "__HIVE_DEFAULT_PARTITION__")


def rules_of(table: Table) -> tuple[Rule, ...]:
    """Returns the rules of the table, and those that its columns imply. Rows that break one are quarantined."""
    computed = table.computed_schema if table.merges_changes else ""
    suppressed = (SUPPRESSED,) if table.subject else ()
    return (*table.rules, *_implied(table.schema, computed, table.partition_by), *suppressed)


def constraints_of(table: Table) -> tuple[Expect, ...]:
    """Returns the CHECK constraints of the stored table as rules. Somebody has added them by hand."""
    properties = stored_table.open_table(table.name).metadata().configuration
    return tuple(
        Expect(f"constraint {name.removeprefix(CONSTRAINT)}", condition, implied=True)
        for name, condition in properties.items()
        if name.startswith(CONSTRAINT)
    )


def all_rules_of(table: Table) -> tuple[Rule, ...]:
    """Returns the rules of the table, of its columns and of its CHECK constraints. The table is stored."""
    return (*rules_of(table), *constraints_of(table))


def rules_by_column(table: Table) -> tuple[Expect, ...]:
    """Returns the rules that the columns of the table imply, each for one column, which its name says."""
    return tuple(
        replace(rule, name=f"{rule.name}, in column '{field.name}'")
        for field in struct_type.from_ddl(table.schema)
        for rule in _implied_by((field,), table.partition_by)
    )


def with_folders(rows: DataFrame, table: Table) -> DataFrame:
    """Returns these rows; reading them fails if text by which the table is partitioned breaks `FOLDERS`."""
    types = {field.name: field.dataType for field in rows.schema} if table.partition_by else {}
    texts = [name for name in table.partition_by if isinstance(types.get(name), StringType)]
    return guarded(rows, _folders(texts))


def guarded(rows: DataFrame, rules: tuple[Rule, ...]) -> DataFrame:
    """Returns these rows; reading them fails if one breaks a rule. rules: of the columns or of the stored table."""
    conditions = [rule for rule in rules if isinstance(rule, Expect) and rule.implied]
    if not conditions:
        return rows
    holds = [f"coalesce({rule.condition}, false)" for rule in conditions]
    names = [f"IF({hold}, NULL, {sql_text.literal(rule.name)})" for hold, rule in zip(holds, conditions, strict=True)]
    problem = f"'a row that it makes breaks: ' || concat_ws(' and ', {', '.join(names)})"
    # One expression, because each part built in Python is a call.
    return rows.filter(f"IF({' AND '.join(holds)}, true, CAST(raise_error({problem}) AS BOOLEAN))")


def for_quarantine(rows: DataFrame) -> DataFrame:
    """Returns quarantined rows as a table can store them: NULL stands for a value with times that readers do not know,
    and `_failed_record` has a row that breaks `TIMES` as JSON, unless it has the row of the source.

    rows: with `_rules`.
    """
    conditions = {
        field.name: text
        for field in rows.schema
        if (text := _times(_quoted(field.name), field.dataType, field.nullable))
    }
    if not conditions:
        return rows
    stored = {name: F.when(F.expr(text), F.col(_quoted(name))) for name, text in conditions.items()}
    if FAILED_RECORD not in rows.columns:
        stored[FAILED_RECORD] = F.when(F.array_contains("_rules", TIMES), F.to_json(F.struct("*")))
    return rows.withColumns(stored)


@lru_cache(maxsize=1_000)
def _implied(schema: str, computed: str, partition_by: tuple[str, ...]) -> tuple[Expect, ...]:
    names = struct_type.from_ddl(computed).fieldNames() if computed else []
    fields = [field for field in struct_type.from_ddl(schema) if field.name not in names]
    return _implied_by(fields, partition_by)


def _implied_by(fields: Sequence[StructField], partition_by: tuple[str, ...]) -> tuple[Expect, ...]:
    rules = []
    for name, condition in ((TIMES, _times), (NOT_NULL, _present)):
        conditions = [
            text for field in fields if (text := condition(_quoted(field.name), field.dataType, field.nullable))
        ]
        if conditions:
            rules.append(Expect(name, " AND ".join(conditions), implied=True))
    texts = [field.name for field in fields if field.name in partition_by and isinstance(field.dataType, StringType)]
    return (*rules, *_folders(texts))


def _folders(texts: Sequence[str]) -> tuple[Expect, ...]:
    """texts: the columns of text by which a table is partitioned."""
    return (Expect(FOLDERS, " AND ".join(map(_fits_folder, texts)), implied=True),) if texts else ()


def _fits_folder(name: str) -> str:
    """Returns a SQL condition that is never NULL: whether the folder `name=value` of a partition can be made, and
    stands for the value.
    """
    escaped = f"regexp_replace({_quoted(name)}, {sql_text.literal(ESCAPED)}, '%00')"
    fits = f"octet_length({escaped}) < {MOST_BYTES - len(name.encode())}"
    is_null = f"{_quoted(name)} IN ({', '.join(map(sql_text.literal, STORED_AS_NULL))})"
    return f"coalesce({fits} AND instr({_quoted(name)}, '\\0') = 0 AND NOT {is_null}, true)"


def _times(value: str, type_: DataType, _: bool, depth: int = 0) -> str | None:
    """Returns a SQL condition that is never NULL, for the times in a value; None for a type without times."""
    if isinstance(type_, DateType):
        return f"coalesce({value} BETWEEN DATE'{FIRST}' AND DATE'{LAST}', true)"
    if isinstance(type_, (TimestampType, TimestampNTZType)):
        is_local = isinstance(type_, TimestampNTZType)
        word, zone = ("TIMESTAMP_NTZ", "") if is_local else ("TIMESTAMP", " UTC")
        first, last = f"{word}'{FIRST} 00:00:00{zone}'", f"{word}'{LAST} 23:59:59.999999{zone}'"
        return f"coalesce({value} BETWEEN {first} AND {last}, true)"
    return _nested(_times, value, type_, depth)


def _present(value: str, type_: DataType, is_nullable: bool, depth: int = 0) -> str | None:
    """Returns a SQL condition that is never NULL, for a value and all fields in it that may not be NULL.

    Delta takes a field of a struct that is NULL for NULL.
    """
    conditions = [f"{value} IS NOT NULL"] if not is_nullable else []
    parts: list[str | None]
    if isinstance(type_, StructType):
        fields = [(f"{value}.{_quoted(field.name)}", field.dataType, field.nullable) for field in type_]
        parts = [_present(*field, depth) for field in fields]
    else:
        parts = [_nested(_present, value, type_, depth)]
    return " AND ".join([*conditions, *filter(None, parts)]) or None


def _nested(condition, value: str, type_: DataType, depth: int) -> str | None:  # type: ignore[no-untyped-def]
    if isinstance(type_, StructType):
        fields = [
            text
            for field in type_
            if (text := condition(f"{value}.{_quoted(field.name)}", field.dataType, field.nullable, depth))
        ]
        return f"({value} IS NULL OR {' AND '.join(fields)})" if fields else None
    if isinstance(type_, ArrayType):
        return _all(condition, value, type_.elementType, depth)
    if isinstance(type_, MapType):
        parts = [
            _all(condition, f"map_keys({value})", type_.keyType, depth),
            _all(condition, f"map_values({value})", type_.valueType, depth),
        ]
        return " AND ".join(part for part in parts if part) or None
    return None


def _all(condition, values: str, type_: DataType, depth: int) -> str | None:  # type: ignore[no-untyped-def]
    inner = condition(f"x{depth}", type_, True, depth + 1)
    return f"coalesce(forall({values}, x{depth} -> {inner}), true)" if inner else None


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
