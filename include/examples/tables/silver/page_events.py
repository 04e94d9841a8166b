"""Page views, and purchases. One that is changed or deleted later remains an event."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.page_events",
    comment="Page views, and purchases",
    source={"views": Delta("silver.page_views"), "purchases": Delta("silver.purchases", changes=True)},
    transform={
        "views": "SELECT 'view' AS kind, view_id AS id, user_id, document_id, time FROM source",
        "purchases": """
            SELECT 'purchase' AS kind, CAST(id AS STRING) AS id, user_id, CAST(NULL AS STRING) AS document_id, time
            FROM source WHERE _change_type = 'insert'
        """,
    },
    schema="kind STRING, id STRING, user_id STRING, document_id STRING, time TIMESTAMP",
    interval_seconds=10,
)
