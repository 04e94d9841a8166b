"""Schema evolution of tables of files: which table column takes a file's column, and what happens to new ones."""

from collections.abc import Iterable

from pyspark.sql import SparkSession
from pyspark.sql import types as T

from include.engine import sql_text, struct_type
from include.engine.commit import read_table
from include.engine.files.formats.columns import FILE_COLUMNS, Columns, FileColumn, fits, is_storable, widest
from include.engine.files.formats.csv_header import is_readable
from include.errors import FlowBroken
from include.lake import locations
from include.spec import Files, Flow, Table, ddl

# Limits the damage of keys that are data, such as customer ids.
MOST_COLUMNS = 1_000


def add_columns(spark: SparkSession, table: Flow, file_columns: Iterable[FileColumn]) -> Columns:
    """Returns the table's columns for a batch with these file columns, and adds new ones to the table. Raises
    Broken.
    """
    columns, new_columns = _resolve_columns(schema_of(spark, table), table, file_columns)
    if new_columns:
        path = locations.table_path(table.name)
        spark.sql(f"ALTER TABLE {sql_text.delta(path)} ADD COLUMNS ({T.StructType(new_columns).toDDL()})")
    return columns


def plan_columns(spark: SparkSession, table: Flow, file_columns: Iterable[FileColumn]) -> Columns:
    """Returns what `add_columns` does without altering the table, which need not be stored."""
    return _resolve_columns(schema_of(spark, table), table, file_columns)[0]


def schema_of(spark: SparkSession, table: Table) -> T.StructType:
    """Returns the stored schema, or the declared one if the table is not stored."""
    if not locations.is_stored(table.name):
        return struct_type.from_ddl(table.schema)
    return read_table(spark, table.name).schema


def _resolve_columns(
    schema: T.StructType, table: Flow, file_columns: Iterable[FileColumn]
) -> tuple[Columns, list[T.StructField]]:
    """Returns the table's columns for a batch with these file columns, and those that are new. Raises FlowBroken."""
    source = table.source_as(Files)
    stored = {key: stored_field for stored_field in schema if (key := ddl.key(stored_field.name)) not in FILE_COLUMNS}
    adds_columns = source.new_columns == "add" or not stored
    new_columns: list[T.StructField] = []
    file_columns = list(file_columns)
    spellings = ddl.most_frequent((column.name, column.count) for column in file_columns)
    for column in file_columns:
        key = ddl.key(column.name)
        field = stored.get(key)
        if field is None and adds_columns and _can_be_column(column) and len(stored) < MOST_COLUMNS:
            new_columns.append(T.StructField(ddl.stored(spellings[key]), widest(column.kind)))
            stored[key] = new_columns[-1]
        elif source.new_columns == "fail" and not (field and fits(column.kind, field.dataType)):
            raise _refusal(table, column, field)
    return Columns(stored, source.new_columns == "ignore"), new_columns


def _can_be_column(column: FileColumn) -> bool:
    name = ddl.stored(column.name)
    is_name = bool(name) and is_readable(name)
    return is_name and ddl.key(name) not in FILE_COLUMNS and is_storable(column.kind)


def _refusal(table: Table, column: FileColumn, field: T.StructField | None) -> FlowBroken:
    type_name = column.kind.simpleString().upper()
    if field:
        problem = (
            f"column '{column.name}' is {type_name}, and the table has it as {field.dataType.simpleString().upper()}"
        )
        remedy = "say new_columns='rescue', and such values go to _rescued_data"
    else:
        problem = f"column '{column.name}' is none of the table"
        remedy = f"add `{column.name} {type_name}` to its schema, or say new_columns='add'"
    return FlowBroken(f"{table.name}: file {column.file}: {problem}: {remedy}", "NEW_COLUMN")
