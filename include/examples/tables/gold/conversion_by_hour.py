"""How many views of a document ended in a purchase, and how many were the last event of the user."""

from include.spec import Bucket, Delta, Table, Upsert

TABLE = Table(
    name="gold.conversion_by_hour",
    comment="Views, conversions and bounces by document and hour, of users who were logged in",
    source=Delta("silver.page_events"),
    schema="hour TIMESTAMP, document_id STRING, views BIGINT, conversions BIGINT, bounces BIGINT",
    transform="""
        WITH outcomes AS (
            SELECT view.id, view.hour, view.document_id,
                coalesce(bool_or(later.kind = 'purchase'), FALSE) AS converts, count(later.id) = 0 AS bounces
            FROM source AS view LEFT JOIN source AS later
                ON later.user_id = view.user_id AND later.time > view.time
                AND later.time < view.time + INTERVAL 30 MINUTES
            WHERE view.kind = 'view' AND view.user_id IS NOT NULL
            GROUP BY ALL)
        SELECT hour, document_id, count(*) AS views, count_if(converts) AS conversions, count_if(bounces) AS bounces
        FROM outcomes GROUP BY ALL
    """,
    write=Upsert(keys=("hour", "document_id"), recompute=Bucket("hour", of="time", unit="hour"), reach_minutes=30),
    interval_seconds=10,
)
