"""How often each document was viewed, by hour, right also after views that are reported late."""

from include.spec import Bucket, Delta, Table, Upsert


def transform(views):
    from pyspark.sql import functions as F

    return views.groupBy("document_id", "hour").agg(
        F.count("*").alias("views"), F.count_distinct("user_id").alias("users")
    )


TABLE = Table(
    name="gold.views_by_hour",
    comment="Views of each document by hour",
    source=Delta("silver.page_views"),
    schema="""
        document_id STRING COMMENT 'what was read',
        hour TIMESTAMP COMMENT 'start of the hour the views lie in, UTC',
        views BIGINT COMMENT 'number of views',
        users BIGINT COMMENT 'number of different users who were logged in'
    """,
    transform=transform,
    write=Upsert(keys=("document_id", "hour"), recompute=Bucket("hour", of="time", unit="hour")),
)
