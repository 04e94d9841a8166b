"""The columns a table declares, as Spark reads them, where Delta can store them."""

import re
from functools import cache

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from include.engine.check.analysis_errors import sentence
from include.spec import Table
from include.validation.declaration import mistake
from include.validation.schemas import REFUSED

UNSTORABLE = re.compile(r"\b(void|interval|time\(|char\(|varchar\(|collate)")


def schema_of(table: Table) -> T.StructType:
    """Raises DeclarationError."""
    try:
        schema = parsed(table.schema)
    except PySparkException as error:
        remedy = "look for a comma, a bracket, a quote or a type that is missing there"
        raise mistake(table, sentence(error, "its schema", remedy)) from error
    for field in schema:
        _check_fields(table, field.name, field.dataType)
        if UNSTORABLE.search(field.dataType.simpleString()):
            raise mistake(
                table,
                f"column '{field.name}' is {field.dataType.simpleString().upper()}, which a Delta table cannot store: "
                f"declare another type",
            )
    return schema


@cache
def parsed(ddl: str) -> T.StructType:
    """The same text is asked for by a table, its readers and its rules, and each answer is a call to the JVM."""
    return T.StructType.fromDDL(ddl)


def empty(spark: SparkSession, schema: T.StructType) -> DataFrame:
    """A frame without rows. That of `createDataFrame` begins with a Python RDD, which takes ten times as long."""
    session = spark._jsparkSession
    return DataFrame(
        session.createDataFrame(spark._jvm.java.util.ArrayList(), session.parseDataType(schema.json())), spark
    )


def _check_fields(table: Table, path: str, kind: T.DataType) -> None:
    if isinstance(kind, T.ArrayType):
        _check_fields(table, path, kind.elementType)
    elif isinstance(kind, T.MapType):
        _check_fields(table, path, kind.keyType)
        _check_fields(table, path, kind.valueType)
    elif isinstance(kind, T.StructType):
        names = [field.name.lower() for field in kind]
        for field in kind:
            if REFUSED.search(field.name):
                raise mistake(
                    table, f"field '{path}.{field.name}' has a character that Delta refuses: use letters, digits and _"
                )
            if names.count(field.name.lower()) > 1:
                raise mistake(table, f"field '{path}.{field.name}' stands in its struct twice: take one out")
            _check_fields(table, f"{path}.{field.name}", field.dataType)
