"""A step is never stored, so there is nothing to protect."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT",
    temporary=True,
    reset_allowed=False,
)
