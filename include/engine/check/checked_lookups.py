"""Checks the columns by which a flow's lookups join, and adds those that they bring."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StructType

from include.catalog import Catalog
from include.engine.batch import read, table_rows
from include.engine.batch.merge_changes import VALID_FROM
from include.engine.check.checked_schema import empty
from include.project.declaration import declaration_error, suggest
from include.spec import Delta, Lookup, Table


def with_lookups(spark: SparkSession, source: DataFrame, table: Table, tables: Catalog) -> DataFrame:
    """Returns an empty source with the columns that its lookups add.

    Raises DeclarationError for a key that the rows lack, keys of different types, and columns that exist already.
    """
    parsed = table_rows.parsed(source, table).schema
    added = StructType()
    for lookup in table.lookups:
        dimension = read.columns(spark, Delta(lookup.table), tables)
        pairs = list(lookup.keys.items()) + ([(lookup.at, VALID_FROM)] if lookup.at else [])
        for name, key in pairs:
            _check_key(table, lookup, parsed, name, dimension[key].dataType)
        for name, column in lookup.added.items():
            if name.lower() in [field.name.lower() for field in parsed]:
                raise declaration_error(
                    table, f"the lookup of {lookup.table} adds '{name}', which its rows have already: give it a prefix"
                )
            added = added.add(name, dimension[column].dataType)
    return empty(spark, StructType([*source.schema, *added]))


def _check_key(table: Table, lookup: Lookup, rows: StructType, name: str, type_: DataType) -> None:
    names = rows.fieldNames()
    if name not in names:
        raise declaration_error(
            table, f"the lookup of {lookup.table} looks for '{name}', which its rows lack: {suggest(name, names)}"
        )
    if rows[name].dataType != type_:
        raise declaration_error(
            table,
            f"the lookup of {lookup.table} compares {name}, which is {rows[name].dataType.simpleString().upper()}, "
            f"with {type_.simpleString().upper()}: give them one type",
        )
