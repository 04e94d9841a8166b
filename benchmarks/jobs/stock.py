"""The jobs of the quick starts of Spark and Delta, with default settings: the peer of benchmarks.jobs.sluice.

Bronze uses the Delta sink. Silver removes bad and repeated rows with an insert-only MERGE. Gold merges the groups of
each batch into the stored ones: late rows are handled correctly, but a replayed batch is not.
"""

import argparse
from pathlib import Path
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter
from pyspark.sql.types import StructType

from benchmarks.jobs.sluice import TABLES, parser
from include.kafka import cluster
from include.lake import locations
from include.settings import settings

SCHEMA = "device_id STRING, time TIMESTAMP, model STRING, heart_bpm INT, kcal DECIMAL(9,3)"
MERGED_SCHEMA = (
    "model STRING, minute TIMESTAMP, readings BIGINT, heart_bpm BIGINT, min_heart_bpm INT, max_heart_bpm INT, "
    "kcal DECIMAL(19,3)"
)


def open_session() -> SparkSession:
    builder = SparkSession.builder.appName("stock").master("local[*]")
    builder = builder.config("spark.driver.extraClassPath", f"{settings().jars}/spark/*")
    builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    catalog = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    return builder.config("spark.sql.catalog.spark_catalog", catalog).getOrCreate()


def path_of(layer: str) -> str:
    return str(locations.table_path(TABLES[layer].name))


def create_table(spark: SparkSession, layer: str, schema: str) -> DeltaTable:
    return DeltaTable.createIfNotExists(spark).location(path_of(layer)).addColumns(StructType.fromDDL(schema)).execute()


def bronze(spark: SparkSession, arguments: argparse.Namespace) -> DataStreamWriter:
    options = {"subscribe": arguments.topic, "startingOffsets": "earliest", **cluster.named(None).spark_options()}
    options |= {"maxOffsetsPerTrigger": str(arguments.rows)} if arguments.rows else {}
    return spark.readStream.format("kafka").options(**options).load().writeStream.format("delta")


def read_stream(spark: SparkSession, layer: str, arguments: argparse.Namespace) -> DataFrame:
    options = {"maxFilesPerTrigger": str(arguments.files)} if arguments.files else {}
    return spark.readStream.format("delta").options(**options).load(path_of(layer))


def silver(spark: SparkSession, arguments: argparse.Namespace) -> DataStreamWriter:
    target = create_table(spark, "silver", SCHEMA)

    def write(rows: DataFrame, _: int) -> None:
        condition = "stored.device_id = new.device_id AND stored.time = new.time"
        distinct_rows = rows.dropDuplicates(["device_id", "time"])
        target.alias("stored").merge(distinct_rows.alias("new"), condition).whenNotMatchedInsertAll().execute()

    fields = F.from_json(F.col("value").cast("string"), SCHEMA)
    typed = read_stream(spark, "bronze", arguments).select(fields.alias("reading")).select("reading.*")
    good = typed.where("device_id IS NOT NULL AND time IS NOT NULL AND heart_bpm BETWEEN 20 AND 250")
    return good.writeStream.foreachBatch(write)


def gold(spark: SparkSession, arguments: argparse.Namespace) -> DataStreamWriter:
    target = create_table(spark, "gold", MERGED_SCHEMA)
    updates = {name: f"stored.{name} + new.{name}" for name in ("readings", "heart_bpm", "kcal")}
    updates |= {"min_heart_bpm": "least(stored.min_heart_bpm, new.min_heart_bpm)"}
    updates |= {"max_heart_bpm": "greatest(stored.max_heart_bpm, new.max_heart_bpm)"}

    def write(rows: DataFrame, _: int) -> None:
        groups = rows.groupBy("model", F.date_trunc("minute", "time").alias("minute")).agg(
            F.count("*").alias("readings"),
            F.sum("heart_bpm").alias("heart_bpm"),
            F.min("heart_bpm").alias("min_heart_bpm"),
            F.max("heart_bpm").alias("max_heart_bpm"),
            F.sum("kcal").alias("kcal"),
        )
        condition = "stored.model = new.model AND stored.minute = new.minute"
        merge = target.alias("stored").merge(groups.alias("new"), condition)
        merge.whenMatchedUpdate(set=dict[str, Any](updates)).whenNotMatchedInsertAll().execute()

    return read_stream(spark, "silver", arguments).writeStream.foreachBatch(write)


def main() -> None:
    arguments = parser().parse_args()
    (layer,) = arguments.layers
    spark = open_session()
    writer = {"bronze": bronze, "silver": silver, "gold": gold}[layer](spark, arguments)
    checkpoint = Path(locations.checkpoints(TABLES[layer].flow)) / "1"
    writer = writer.option("checkpointLocation", str(checkpoint))
    if arguments.once:
        writer = writer.trigger(availableNow=True)
    elif arguments.interval:
        writer = writer.trigger(processingTime=f"{arguments.interval} seconds")
    path = [path_of(layer)] if layer == "bronze" else []
    writer.start(*path).awaitTermination()


if __name__ == "__main__":
    main()
