"""Schema evolution of tables of files: which table column takes a file's column, and what happens to new ones."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from pyspark.sql import SparkSession
from pyspark.sql import types as T

from include.engine import sql_text, struct_type
from include.engine.files.csv_header import is_readable
from include.engine.tables.commit import read_table
from include.errors import FlowBroken
from include.settings import settings
from include.spec import FILES_SCHEMA, Files, Table, ddl

FILE_COLUMNS = {ddl.key(name) for name in ddl.columns(FILES_SCHEMA)}
# Limits the damage of keys that are data, such as customer ids.
MOST_COLUMNS = 1_000
STORABLE = (
    T.BooleanType, T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType, T.DecimalType,
    T.StringType, T.BinaryType, T.DateType, T.TimestampType,
)  # fmt: skip
# In each row, every value of a type is also a value of the types after it.
WIDER = (
    (T.ByteType, T.ShortType, T.IntegerType, T.LongType),
    (T.FloatType, T.DoubleType),
)
NUMBERS = (*chain(*WIDER), T.DecimalType)


@dataclass(frozen=True)
class FileColumn:
    """A column of files. file: the path of one that has it. count: how many files or records have it so spelled."""

    name: str
    kind: T.DataType
    file: str
    count: int = 1


@dataclass(frozen=True)
class Columns:
    """The table's columns, by the key of their names. drops: columns that the table lacks are dropped, not rescued."""

    stored: dict[str, T.StructField]
    drops: bool

    def of(self, name: str, type_: T.DataType) -> T.StructField | None:
        """Returns the table column for a file column of this type; None if the table lacks it or its type differs."""
        field = self.stored.get(ddl.key(name))
        return field if field and fits(type_, field.dataType) else None

    def similar(self, name: str, type_: T.DataType) -> T.StructField | None:
        """Returns the table column that can hold some values of a file column, if both are numbers."""
        field = self.stored.get(ddl.key(name))
        is_number = field and isinstance(field.dataType, NUMBERS) and isinstance(type_, NUMBERS)
        return field if is_number else None

    def leaves_out(self, name: str) -> bool:
        return self.drops and ddl.key(name) not in self.stored


def add_columns(spark: SparkSession, table: Table, file_columns: Iterable[FileColumn]) -> Columns:
    """Returns the table's columns for a batch with these file columns, and adds new ones to the table. Raises
    Broken.
    """
    columns, new_columns = _resolve_columns(schema_of(spark, table), table, file_columns)
    if new_columns:
        path = settings().table_path(table.name)
        spark.sql(f"ALTER TABLE {sql_text.delta(path)} ADD COLUMNS ({T.StructType(new_columns).toDDL()})")
    return columns


def plan_columns(spark: SparkSession, table: Table, file_columns: Iterable[FileColumn]) -> Columns:
    """Returns what `add_columns` does without altering the table, which need not be stored."""
    return _resolve_columns(schema_of(spark, table), table, file_columns)[0]


def schema_of(spark: SparkSession, table: Table) -> T.StructType:
    """Returns the stored schema, or the declared one if the table is not stored."""
    if not settings().is_stored(table.name):
        return struct_type.from_ddl(table.schema)
    return read_table(spark, table.name).schema


def _resolve_columns(
    schema: T.StructType, table: Table, file_columns: Iterable[FileColumn]
) -> tuple[Columns, list[T.StructField]]:
    """Returns the table's columns for a batch with these file columns, and those that are new. Raises FlowBroken."""
    source = table.source
    assert isinstance(source, Files)
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


def fits(type_: T.DataType, stored: T.DataType) -> bool:
    """Whether every value of the first type is also one of the second."""
    if type_ == stored:
        return True
    for types in WIDER:
        if type(type_) in types and type(stored) in types:
            return types.index(type(type_)) <= types.index(type(stored))
    if isinstance(type_, T.DecimalType) and isinstance(stored, T.DecimalType):
        return type_.scale <= stored.scale and type_.precision - type_.scale <= stored.precision - stored.scale
    return type_.simpleString() == stored.simpleString()


def widest(type_: T.DataType) -> T.DataType:
    """Returns the type for a new column. Its later files may need a wider one, and stored columns keep their type,
    because Delta's type widening excludes many readers.
    """
    return next((types[-1]() for types in WIDER if isinstance(type_, types)), type_)


def is_storable(type_: T.DataType) -> bool:
    """Whether Delta and all its readers support the type."""
    if isinstance(type_, T.StructType):
        return all(is_storable(field.dataType) and not ddl.INVALID.search(field.name) for field in type_) and bool(
            type_
        )
    if isinstance(type_, T.ArrayType):
        return is_storable(type_.elementType)
    if isinstance(type_, T.MapType):
        return is_storable(type_.keyType) and is_storable(type_.valueType)
    return isinstance(type_, STORABLE)


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
