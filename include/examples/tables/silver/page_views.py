"""One row per page view. One that was reported again counts once: the first report stays."""

from include.spec import Append, Avro, Delta, Expect, Table, Watermark

FIELDS = """
    {"name": "view_id", "type": "string"},
    {"name": "time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "document_id", "type": "string"},
    {"name": "user_id", "type": ["null", "string"], "default": null}
"""
REFERRER = """, {"name": "referrer", "type": ["null", "string"], "default": null}"""
# By the ids under which the schema registry knows them.
SCHEMAS = {
    1: f'{{"type": "record", "name": "PageView", "fields": [{FIELDS}]}}',
    2: f'{{"type": "record", "name": "PageView", "fields": [{FIELDS}{REFERRER}]}}',
}

TABLE = Table(
    name="silver.page_views",
    comment="One row per page view",
    source=Delta("bronze.page_views"),
    parse=Avro("value", into=("view_id", "time", "document_id", "user_id", "referrer"), schemas=SCHEMAS),
    schema="""
        view_id STRING COMMENT 'given by the browser; a view that is reported again has the same one',
        time TIMESTAMP COMMENT 'when the page was opened',
        document_id STRING COMMENT 'what was read',
        user_id STRING COMMENT 'who read it; NULL: somebody who was not logged in',
        referrer STRING COMMENT 'the page before; NULL also in views of schema 1, which do not tell',
        schema_id INT COMMENT 'the schema the view was written with',
        topic STRING COMMENT 'where the message came from',
        partition INT, offset BIGINT,
        _errors ARRAY<STRUCT<field: STRING, message: STRING>> COMMENT 'what could not be read, and why'
    """,
    time_column="time",
    write=Append(
        unique=("view_id",), first_by=("topic", "partition", "offset"), watermark=Watermark("time", minutes=180)
    ),
    expect=(Expect("identified", "view_id IS NOT NULL AND time IS NOT NULL AND document_id IS NOT NULL"),),
)
