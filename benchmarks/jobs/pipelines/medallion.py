"""The medallion of benchmarks.bulk_medallion as a Spark Declarative Pipeline. Only spark-pipelines can import it.

Repeated rows are kept: `dropDuplicates` is analyzed at the declaration of the pipeline, before its source exists.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()
SCHEMA = "device_id STRING, time TIMESTAMP, model STRING, heart_bpm INT, kcal DECIMAL(9,3)"


@dp.table(format="delta")
def bronze() -> DataFrame:
    options = {
        "kafka.bootstrap.servers": spark.conf.get("sluice.benchmark.kafka"),
        "subscribe": spark.conf.get("sluice.benchmark.topic"),
        "startingOffsets": "earliest",
    }
    return spark.readStream.format("kafka").options(**options).load()


@dp.table(format="delta")
def silver() -> DataFrame:
    fields = F.from_json(F.col("value").cast("string"), SCHEMA)
    typed = spark.readStream.table("bronze").select(fields.alias("reading")).select("reading.*")
    return typed.where("device_id IS NOT NULL AND time IS NOT NULL AND heart_bpm BETWEEN 20 AND 250")


@dp.materialized_view(format="delta")
def gold() -> DataFrame:
    minute = F.date_trunc("minute", "time").alias("minute")
    return (
        spark.read.table("silver")
        .groupBy("model", minute)
        .agg(
            F.count("*").alias("readings"),
            F.avg("heart_bpm").alias("avg_heart_bpm"),
            F.min("heart_bpm").alias("min_heart_bpm"),
            F.max("heart_bpm").alias("max_heart_bpm"),
            F.sum("kcal").alias("kcal"),
        )
    )
