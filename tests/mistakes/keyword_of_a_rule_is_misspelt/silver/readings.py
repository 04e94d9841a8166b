"""A keyword of a ready-made rule."""

from include.rules import not_null
from include.spec import Delta, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
    expect=(not_null("key", otherwize="drop"),),
)
