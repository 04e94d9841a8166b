"""Reads a stored table with Spark."""

from pyspark.sql import DataFrame, SparkSession

from include.settings import settings


def read_table(spark: SparkSession, name: str, version: int | None = None) -> DataFrame:
    """Returns the rows of a stored table, with the table's columns. version: None for the newest at each query."""
    reader = spark.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    return reader.load(str(settings().table_path(name)))
