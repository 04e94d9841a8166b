"""What is said of the columns of a file holds for thousands of them."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from include.engine.files.formats.format import any_of


def test_one_of_thousands_of_conditions_is_found_within_spark_s_stack(spark: SparkSession):
    conditions = [F.col("id") == number for number in range(3_000)]
    rows = spark.range(2_999, 3_001).coalesce(1).select(any_of(conditions).alias("found"))
    assert [row["found"] for row in rows.collect()] == [True, False]
