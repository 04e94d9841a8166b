"""Every page view that the readers' browsers reported, as it came."""

from include.spec import KAFKA_SCHEMA_WITH_IDS, Kafka, Table

TABLE = Table(
    name="bronze.page_views",
    comment="Every page view that the readers' browsers reported, as it came",
    source=Kafka("page-views", schema_ids=True),
    schema=KAFKA_SCHEMA_WITH_IDS,
    interval_seconds=10,
)
