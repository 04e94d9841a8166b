"""Heart rate and energy by tracker model and minute, right also after readings that arrive late."""

from include.spec import Bucket, Delta, Table, Upsert


def transform(readings):
    from pyspark.sql import functions as F

    return readings.groupBy("model", "minute").agg(
        F.count("*").alias("readings"),
        F.avg("heart_bpm").alias("avg_heart_bpm"),
        F.min("heart_bpm").alias("min_heart_bpm"),
        F.max("heart_bpm").alias("max_heart_bpm"),
        F.sum("kcal").alias("kcal"),
    )


TABLE = Table(
    name="gold.heart_rate_by_model",
    comment="Heart rate and energy by tracker model and minute",
    source=Delta("silver.tracker_readings"),
    schema="""
        model STRING COMMENT 'product name of the tracker',
        minute TIMESTAMP COMMENT 'start of the minute the readings lie in, UTC',
        readings BIGINT COMMENT 'number of readings',
        avg_heart_bpm DOUBLE COMMENT 'beats per minute',
        min_heart_bpm INT COMMENT 'beats per minute', max_heart_bpm INT COMMENT 'beats per minute',
        kcal DECIMAL(19,3) COMMENT 'kilocalories burnt'
    """,
    transform=transform,
    write=Upsert(keys=("model", "minute"), recompute=Bucket("minute", of="time", unit="minute")),
)
