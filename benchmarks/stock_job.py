"""The jobs of the quick starts of Spark and Delta, with default settings: the peer of benchmarks.sluice_job.

Bronze by the Delta sink; silver without bad rows and repeated ones by an insert-only MERGE; gold by a MERGE of each
batch's groups into what is stored, which a late row cannot make wrong, but a replay can.
"""

import argparse
from pathlib import Path
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter
from pyspark.sql.types import StructType

from benchmarks.sluice_job import TABLES, parser
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
    return str(settings().table_path(TABLES[layer].name))


def created(spark: SparkSession, layer: str, schema: str) -> DeltaTable:
    return DeltaTable.createIfNotExists(spark).location(path_of(layer)).addColumns(StructType.fromDDL(schema)).execute()


def bronze(spark: SparkSession, arguments: argparse.Namespace) -> DataStreamWriter:
    options = {"kafka.bootstrap.servers": settings().kafka, "subscribe": arguments.topic, "startingOffsets": "earliest"}
    options |= {"maxOffsetsPerTrigger": str(arguments.rows)} if arguments.rows else {}
    return spark.readStream.format("kafka").options(**options).load().writeStream.format("delta")


def stored(spark: SparkSession, layer: str, arguments: argparse.Namespace) -> DataFrame:
    options = {"maxFilesPerTrigger": str(arguments.files)} if arguments.files else {}
    return spark.readStream.format("delta").options(**options).load(path_of(layer))


def silver(spark: SparkSession, arguments: argparse.Namespace) -> DataStreamWriter:
    target = created(spark, "silver", SCHEMA)

    def write(rows: DataFrame, _: int) -> None:
        same = "stored.device_id = new.device_id AND stored.time = new.time"
        first = rows.dropDuplicates(["device_id", "time"])
        target.alias("stored").merge(first.alias("new"), same).whenNotMatchedInsertAll().execute()

    fields = F.from_json(F.col("value").cast("string"), SCHEMA)
    typed = stored(spark, "bronze", arguments).select(fields.alias("reading")).select("reading.*")
    good = typed.where("device_id IS NOT NULL AND time IS NOT NULL AND heart_bpm BETWEEN 20 AND 250")
    return good.writeStream.foreachBatch(write)


def gold(spark: SparkSession, arguments: argparse.Namespace) -> DataStreamWriter:
    target = created(spark, "gold", MERGED_SCHEMA)
    add = {name: f"stored.{name} + new.{name}" for name in ("readings", "heart_bpm", "kcal")}
    add |= {"min_heart_bpm": "least(stored.min_heart_bpm, new.min_heart_bpm)"}
    add |= {"max_heart_bpm": "greatest(stored.max_heart_bpm, new.max_heart_bpm)"}

    def write(rows: DataFrame, _: int) -> None:
        groups = rows.groupBy("model", F.date_trunc("minute", "time").alias("minute")).agg(
            F.count("*").alias("readings"),
            F.sum("heart_bpm").alias("heart_bpm"),
            F.min("heart_bpm").alias("min_heart_bpm"),
            F.max("heart_bpm").alias("max_heart_bpm"),
            F.sum("kcal").alias("kcal"),
        )
        same = "stored.model = new.model AND stored.minute = new.minute"
        merge = target.alias("stored").merge(groups.alias("new"), same)
        merge.whenMatchedUpdate(set=dict[str, Any](add)).whenNotMatchedInsertAll().execute()

    return stored(spark, "silver", arguments).writeStream.foreachBatch(write)


def main() -> None:
    arguments = parser().parse_args()
    (layer,) = arguments.layers
    spark = open_session()
    writer = {"bronze": bronze, "silver": silver, "gold": gold}[layer](spark, arguments)
    checkpoint = Path(settings().checkpoints(TABLES[layer].flow)) / "1"
    writer = writer.option("checkpointLocation", str(checkpoint))
    if arguments.once:
        writer = writer.trigger(availableNow=True)
    elif arguments.interval:
        writer = writer.trigger(processingTime=f"{arguments.interval} seconds")
    path = [path_of(layer)] if layer == "bronze" else []
    writer.start(*path).awaitTermination()


if __name__ == "__main__":
    main()
