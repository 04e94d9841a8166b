"""Parses the columns that a table declares, and checks that Delta can store them."""

import re
from functools import cache

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from include.engine import struct_type
from include.engine.analysis_errors import sentence
from include.engine.session import jvm_of
from include.project.columns import INVALID_NAME_CHARACTERS
from include.project.declaration import declaration_error
from include.spec import Table, ddl

UNSTORABLE = re.compile(r"\b(void|interval|time\(|char\(|varchar\(|collate)")


def schema_of(table: Table) -> T.StructType:
    """Returns the declared schema. Raises DeclarationError."""
    try:
        schema = parsed(table.schema)
    except PySparkException as error:
        remedy = "look for a comma, a bracket, a quote or a type that is missing there"
        raise declaration_error(table, sentence(error, "its schema", remedy)) from error
    for field in schema:
        _check_fields(table, field.name, field.dataType)
        if UNSTORABLE.search(field.dataType.simpleString()):
            raise declaration_error(
                table,
                f"column '{field.name}' is {field.dataType.simpleString().upper()}, which a Delta table cannot store: "
                f"declare another type",
            )
    return schema


@cache
def parsed(ddl: str) -> T.StructType:
    """Parses DDL. Cached, because a table, its readers and its rules all need it, and each call goes to the JVM."""
    return struct_type.from_ddl(ddl)


def empty(spark: SparkSession, schema: T.StructType) -> DataFrame:
    """Returns a DataFrame without rows. `createDataFrame` would start from a Python RDD, which takes ten times
    as long.
    """
    session = spark._jsparkSession
    return DataFrame(
        session.createDataFrame(jvm_of(spark).java.util.ArrayList(), session.parseDataType(schema.json())), spark
    )


def _check_fields(table: Table, path: str, type_: T.DataType) -> None:
    if isinstance(type_, T.ArrayType):
        _check_fields(table, path, type_.elementType)
    elif isinstance(type_, T.MapType):
        _check_fields(table, path, type_.keyType)
        _check_fields(table, path, type_.valueType)
    elif isinstance(type_, T.StructType):
        names = [ddl.folded(field.name) for field in type_]
        for field in type_:
            if INVALID_NAME_CHARACTERS.search(field.name):
                raise declaration_error(
                    table, f"field '{path}.{field.name}' has a character that Delta refuses: use letters, digits and _"
                )
            if names.count(ddl.folded(field.name)) > 1:
                raise declaration_error(table, f"field '{path}.{field.name}' stands in its struct twice: take one out")
            _check_fields(table, f"{path}.{field.name}", field.dataType)
