"""Loads the classes that a driver needs in its first minutes, by running three flows over small tables.

`include.local.class_data` starts it by spark-submit, in a temporary home directory.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.catalog import Catalog
from include.engine import sql_text
from include.engine.session import jvm_of, open_session
from include.engine.stream import driver
from include.lake import locations
from include.spec import Append, Bucket, Delta, Expect, Table, Upsert

JSON = '{"device": "a", "time": "2026-03-01T12:00:01Z", "bpm": 60}'
# Classes that Spark loads only when it connects to a broker.
KAFKA = (
    "org.apache.spark.sql.kafka010.KafkaSourceProvider",
    "org.apache.spark.sql.kafka010.KafkaMicroBatchStream",
    "org.apache.spark.sql.kafka010.KafkaBatchPartitionReader",
    "org.apache.spark.sql.kafka010.consumer.KafkaDataConsumer",
    "org.apache.kafka.clients.admin.KafkaAdminClient",
    "org.apache.kafka.clients.consumer.KafkaConsumer",
)


def readings(rows: DataFrame) -> DataFrame:
    return rows.select(F.from_json("text", "device STRING, time TIMESTAMP, bpm INT").alias("r"), "place").select(
        "r.*", "place"
    )


def per_minute(rows: DataFrame) -> DataFrame:
    return rows.groupBy("device", "minute").agg(F.count("*").alias("readings"), F.max("bpm").alias("most"))


TABLES = (
    Table(
        name="bronze.b",
        comment="as it came",
        source=Delta("bronze.raw", max_files=1),
        schema="text STRING, place BIGINT",
    ),
    Table(
        name="silver.s",
        comment="readings",
        source=Delta("bronze.b"),
        schema="device STRING, time TIMESTAMP, bpm INT, place BIGINT",
        transform=readings,
        write=Append(unique=("device", "time"), first_by=("place",)),
        expect=(Expect("plausible", "bpm > 20"),),
    ),
    Table(
        name="gold.g",
        comment="by minute",
        source=Delta("silver.s"),
        schema="device STRING, minute TIMESTAMP, readings BIGINT, most INT",
        transform=per_minute,
        write=Upsert(keys=("device", "minute"), recompute=Bucket("minute", of="time", unit="minute")),
    ),
)


def main() -> None:
    spark = open_session("class data", Catalog({}))
    raw = str(locations.table_path("bronze.raw"))
    for name in KAFKA:
        jvm_of(spark).org.apache.spark.util.Utils.classForName(name, True, False)
    for number in range(2):
        rows = spark.createDataFrame([(JSON, number), ("{}", number)], "text STRING, place BIGINT")
        rows.coalesce(1).write.format("delta").mode("append").save(raw)
    scattered = str(locations.table_path("bronze.scattered"))
    spark.read.format("delta").load(raw).repartition(2).write.format("delta").save(scattered)
    spark.sql(f"OPTIMIZE {sql_text.delta(scattered)}")
    driver.run([table.single_flow for table in TABLES], once=True)


if __name__ == "__main__":
    main()
