"""Which column of a table takes which column of a file, and what happens to one that has none."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql import types as T

from include.engine.files.csv_header import is_readable
from include.errors import Broken
from include.settings import settings
from include.spec import FILES_SCHEMA, Files, Table, ddl

OWN = {name.lower() for name in ddl.columns(FILES_SCHEMA)}
# What Delta refuses in a name.
REFUSED = re.compile(r"[ ,;{}()\n\t=]")
# So that keys which are data (an id for each customer, say) do not become columns for ever.
MOST_COLUMNS = 1_000
STORABLE = (
    T.BooleanType, T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType, T.DecimalType,
    T.StringType, T.BinaryType, T.DateType, T.TimestampType,
)  # fmt: skip
# A value of one type is the same value in each that follows it.
WIDER = (
    (T.ByteType, T.ShortType, T.IntegerType, T.LongType),
    (T.FloatType, T.DoubleType),
)


@dataclass(frozen=True)
class Found:
    """A column of a file; file: one that has it."""

    name: str
    kind: T.DataType
    file: str


@dataclass(frozen=True)
class Columns:
    """The columns of the table, by name in small letters. drops: what has no column is left out."""

    stored: dict[str, T.StructField]
    drops: bool

    def of(self, name: str, kind: T.DataType) -> T.StructField | None:
        """The column that takes it; None where there is none, or one of another type."""
        field = self.stored.get(name.lower())
        return field if field and fits(kind, field.dataType) else None

    def leaves_out(self, name: str) -> bool:
        return self.drops and name.lower() not in self.stored


def settle(spark: SparkSession, table: Table, found: Iterable[Found]) -> Columns:
    """The columns of the table for a batch that holds these; new ones are added to it now. Raises Broken."""
    columns, new = _settled(schema_of(spark, table), table, found)
    if new:
        path = settings().table_path(table.name)
        spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS ({T.StructType(new).toDDL()})")
    return columns


def foresee(spark: SparkSession, table: Table, found: Iterable[Found]) -> Columns:
    """The same, while the table stays as it is; it need not be stored yet."""
    return _settled(schema_of(spark, table), table, found)[0]


def schema_of(spark: SparkSession, table: Table) -> T.StructType:
    """As it is stored, or before that as it is declared."""
    if not settings().is_stored(table.name):
        return T.StructType.fromDDL(table.schema)
    return spark.read.format("delta").load(str(settings().table_path(table.name))).schema


def _settled(schema: T.StructType, table: Table, found: Iterable[Found]) -> tuple[Columns, list[T.StructField]]:
    """The columns that a table of this schema has for a batch that holds these, and which of them are new."""
    source = table.source
    assert isinstance(source, Files)
    stored = {field.name.lower(): field for field in schema if field.name.lower() not in OWN}
    adds = source.new_columns == "add" or not stored
    new: list[T.StructField] = []
    for one in found:
        known = stored.get(one.name.lower())
        if known is None and adds and _can_be_column(one) and len(stored) < MOST_COLUMNS:
            new.append(T.StructField(one.name, one.kind))
            stored[one.name.lower()] = new[-1]
        elif source.new_columns == "fail" and not (known and fits(one.kind, known.dataType)):
            raise _refused(table, one, known)
    return Columns(stored, source.new_columns == "ignore"), new


def fits(kind: T.DataType, stored: T.DataType) -> bool:
    """Whether every value of the one type is one of the other."""
    if kind == stored:
        return True
    for row in WIDER:
        if type(kind) in row and type(stored) in row:
            return row.index(type(kind)) <= row.index(type(stored))
    if isinstance(kind, T.DecimalType) and isinstance(stored, T.DecimalType):
        return kind.scale <= stored.scale and kind.precision - kind.scale <= stored.precision - stored.scale
    return kind.simpleString() == stored.simpleString()


def is_storable(kind: T.DataType) -> bool:
    """Whether Delta takes it, and every reader of Delta."""
    if isinstance(kind, T.StructType):
        return all(is_storable(field.dataType) and not REFUSED.search(field.name) for field in kind) and bool(kind)
    if isinstance(kind, T.ArrayType):
        return is_storable(kind.elementType)
    if isinstance(kind, T.MapType):
        return is_storable(kind.keyType) and is_storable(kind.valueType)
    return isinstance(kind, STORABLE)


def _can_be_column(one: Found) -> bool:
    name = one.name.lower()
    is_name = bool(name) and is_readable(name)
    return is_name and name not in OWN and not REFUSED.search(name) and is_storable(one.kind)


def _refused(table: Table, one: Found, known: T.StructField | None) -> Broken:
    kind = one.kind.simpleString().upper()
    if known:
        what = f"column '{one.name}' is {kind}, and the table has it as {known.dataType.simpleString().upper()}"
        remedy = "say new_columns='rescue', and such values go to _rescued_data"
    else:
        what = f"column '{one.name}' is none of the table"
        remedy = f"add `{one.name} {kind}` to its schema, or say new_columns='add'"
    return Broken(f"{table.name}: file {one.file}: {what}: {remedy}", "NEW_COLUMN")
