"""Reads a stored table with Spark."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.settings import settings


def read_table(spark: SparkSession, name: str, version: int | None = None) -> DataFrame:
    """Returns the rows of a stored table, with the table's columns. version: None for the newest at each query."""
    reader = spark.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    return reader.load(str(settings().table_path(name)))


def read_as_of(spark: SparkSession, name: str, version: int) -> DataFrame:
    """Returns the rows of an old version, in the columns that the table has now. Columns that it lacked are NULL."""
    rows = read_table(spark, name, version)
    added = [field for field in read_table(spark, name).schema.fields if field.name not in rows.columns]
    return rows.withColumns({field.name: F.lit(None).cast(field.dataType) for field in added})
