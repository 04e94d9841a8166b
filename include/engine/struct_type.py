"""Parses Spark DDL into the columns that it declares."""

from typing import cast

from pyspark.sql.types import StructType


def from_ddl(ddl: str) -> StructType:
    # PySpark declares the result as DataType, although the DDL of a table always names columns.
    return cast(StructType, StructType.fromDDL(ddl))
