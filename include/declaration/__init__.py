"""What a table file may say: each rule that can be known without Spark, and the sentence that refuses it."""

import math
import re
from dataclasses import asdict
from difflib import get_close_matches
from itertools import pairwise

from include import ddl
from include.errors import DeclarationError
from include.spec import (
    BUCKET_UNITS,
    Append,
    Avro,
    Bucket,
    Cast,
    Delta,
    Expect,
    Files,
    Json,
    Kafka,
    Maintenance,
    References,
    Replace,
    Table,
    Unique,
    Upsert,
    Watermark,
)

# Minute, hour, day, month and day of the week.
CRON = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


def check_alone(table: Table) -> None:
    """Raises DeclarationError for what is wrong by itself."""
    _check_kinds(table)
    _check_schema(table)


def check_among(table: Table, tables: dict[str, Table]) -> None:
    """Raises DeclarationError for what is wrong among the other tables, each of which is right by itself."""
    for reader in table.readers:
        _check_source(reader, tables)
        _check_write(reader, tables)
        _check_bronze(reader)
    _check_times(table)
    _check_schedule(table)
    _check_maintenance(table)


def _check_kinds(table: Table) -> None:
    """Python takes any value for any field; what follows relies on their kinds."""
    for reader in table.readers:
        _check_kind(table, "source", reader.source, Kafka, Files, Delta)
    _check_kind(table, "write", table.write, Append, Upsert, Replace)
    _check_kind(table, "schema", table.schema, str)
    _check_kind(table, "schedule", table.schedule, str, type(None))
    _check_kind(table, "interval_seconds", table.interval_seconds, int, float)
    _check_kind(table, "fresh_minutes", table.fresh_minutes, int, float, type(None))
    _check_kind(table, "maintain", table.maintain, Maintenance)
    check_list(table, "expect", table.expect, Expect, Unique, References)
    if table.parse is not None:
        _check_kind(table, "parse", table.parse, Json, Avro, Cast)
        check_list(table, "into", table.parse.into, str)
        _check_kind(table, "fails", table.parse.fails, bool)
    is_sql = isinstance(table.transform, str) and table.transform.strip()
    if not (table.transform is None or is_sql or callable(table.transform)):
        raise mistake(table, f"transform is {table.transform!r}: it has to be a function or SQL text")
    if isinstance(table.write, Append):
        check_list(table, "unique", table.write.unique, str)
        check_list(table, "first_by", table.write.first_by, str)
        if table.write.watermark is not None:
            _check_kind(table, "watermark", table.write.watermark, Watermark)
    if isinstance(table.write, Upsert):
        check_list(table, "keys", table.write.keys, str)
        _check_kind(table, "recompute", table.write.recompute, Bucket, type(None))
        _check_kind(table, "in_windows", table.write.in_windows, bool)


def _check_kind(table: Table, what: str, value: object, *kinds: type) -> None:
    if not isinstance(value, kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise mistake(table, f"{what} is {value!r}: it has to be {wanted}")


def check_list(table: Table, what: str, values: object, *kinds: type) -> None:
    if isinstance(values, kinds):
        raise mistake(table, f"{what} is {values!r} and no tuple: write {what}=(...,) with the comma")
    if not isinstance(values, (tuple, list)) or not all(isinstance(value, kinds) for value in values):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise mistake(table, f"{what} is {values!r}: it has to be a tuple of {wanted}")


def _check_schema(table: Table) -> None:
    columns = ddl.columns(table.schema)
    if not any(columns):
        raise mistake(table, "schema is empty: name its columns")
    if not all(columns):
        before = next((f"after '{name}'" for name, following in pairwise(columns) if not following), "at its beginning")
        raise mistake(table, f"schema has a comma too many {before}: take it out")
    if table.parse:
        for name in table.parse.into:
            if name not in columns:
                raise mistake(table, f"into names '{name}', no column of its schema: {suggest(name, columns)}")
        if "_errors" not in columns:
            raise mistake(
                table,
                "parse without a column for what cannot be typed: "
                "add `_errors ARRAY<STRUCT<field: STRING, message: STRING>>` to its schema",
            )


def _check_source(table: Table, tables: dict[str, Table]) -> None:
    if not isinstance(table.source, Delta):
        return
    source = table.source.table
    if source not in tables:
        raise mistake(table, f"source is '{source}', which no file declares: {suggest(source, list(tables))}")
    if table.is_view:
        if tables[source].temporary:
            raise mistake(
                table,
                f"source '{source}' is a temporary step, and a view reads what is stored: store it, or do the same in "
                f"the transform of the view",
            )
        return
    if tables[source].is_view:
        raise mistake(
            table,
            f"source '{source}' is a materialized view, and a stream would stop at its next refresh, which replaces "
            f"all rows: read what the view reads, or make this table a view, write=Replace()",
        )
    if isinstance(tables[source].write, Upsert) and not table.source.changes:
        raise mistake(
            table,
            f"source '{source}' is upserted, and a stream of appends would stop at the first changed row: "
            f"read its changes, Delta('{source}', changes=True)",
        )


def _check_write(table: Table, tables: dict[str, Table]) -> None:
    if isinstance(table.write, Replace):
        return
    columns = ddl.columns(table.schema)
    keys = (*table.write.unique, *table.write.first_by) if isinstance(table.write, Append) else table.write.keys
    for key in keys:
        if key not in columns:
            raise mistake(table, f"key '{key}' is not a column of its schema: {suggest(key, columns)}")
    if isinstance(table.write, Upsert):
        if not keys:
            raise mistake(table, "Upsert has no keys: name the columns that identify a row")
        if not isinstance(table.source, Delta):
            raise mistake(table, "an aggregate is recomputed from a Delta table, and its source is none: read one")
        bucket = table.write.recompute
        if bucket is None:
            return
        if bucket.unit not in BUCKET_UNITS:
            raise mistake(table, f"bucket unit is '{bucket.unit}': {suggest(bucket.unit, list(BUCKET_UNITS))}")
        if bucket.name not in keys:
            raise mistake(table, f"bucket '{bucket.name}' is not one of its keys: add it to {keys}")
        options = ddl.columns(tables[table.source.table].schema)
        if bucket.of not in options:
            raise mistake(table, f"bucket of '{bucket.of}', which its source has not: {suggest(bucket.of, options)}")


def _check_bronze(table: Table) -> None:
    if not isinstance(table.source, Kafka):
        return
    if table.layer != "bronze":
        raise mistake(table, "only bronze reads Kafka, so that what arrived is kept as it arrived: read a bronze table")
    barred = "expect" if table.expect else "unique" if isinstance(table.write, Append) and table.write.unique else None
    if barred:
        raise mistake(
            table, f"{barred} would drop messages, and bronze keeps each as it arrived: put it on the silver table"
        )


def _check_times(table: Table) -> None:
    if not 0 < table.interval_seconds < math.inf:
        raise mistake(table, f"interval_seconds is {table.interval_seconds}: set it to a number above 0")
    if table.fresh_minutes is not None and not 0 < table.fresh_minutes < math.inf:
        raise mistake(table, f"fresh_minutes is {table.fresh_minutes}: set it to a number above 0, or leave it out")


def _check_schedule(table: Table) -> None:
    for schedule in (table.schedule, table.maintain.schedule):
        if schedule is not None and not _is_cron(str(schedule)):
            raise mistake(table, f"schedule is {schedule!r}, which is not the five fields of cron: write '0 3 * * *'")
    if table.schedule is None or table.is_view:
        return
    if table.merges_in_windows:
        raise mistake(
            table,
            f"schedule is '{table.schedule}', and what its source gathers is merged in windows, which have their own: "
            f"write maintain=Maintenance(schedule='{table.schedule}')",
        )
    if table.interval_seconds != Table.interval_seconds:
        raise mistake(table, "schedule and interval_seconds both say when it reads: keep one")


def _check_maintenance(table: Table) -> None:
    for name, value in asdict(table.maintain).items():
        if name == "schedule":
            continue
        if not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise mistake(table, f"{name} is {value!r}: set it to a number above 0")


def _is_cron(text: str) -> bool:
    fields = text.split()
    return len(fields) == len(CRON) and all(
        re.fullmatch(r"[*\d,/-]+", field) and all(least <= int(one) <= most for one in re.findall(r"\d+", field))
        for field, (least, most) in zip(fields, CRON, strict=True)
    )


def mistake(table: Table, sentence: str, path: str | None = None) -> DeclarationError:
    """path: the file's own name, where the table has another."""
    layer, name = (path or table.name).split(".")
    return DeclarationError(f"include/tables/{layer}/{name}.py: {sentence}")


def suggest(wrong: str, options: list[str]) -> str:
    """What was perhaps meant."""
    close = get_close_matches(wrong, options, n=1)
    return f"did you mean '{close[0]}'?" if close else f"there are {', '.join(options) or 'none'}"
