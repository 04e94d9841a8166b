"""Columns of files, and those of the table that take them."""

from dataclasses import dataclass
from itertools import chain

from pyspark.sql import types as T

from include.spec import FILES_SCHEMA, ddl

FILE_COLUMNS = {ddl.key(name) for name in ddl.columns(FILES_SCHEMA)}
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
