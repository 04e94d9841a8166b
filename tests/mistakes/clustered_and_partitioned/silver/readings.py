"""One of the two."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT",
    cluster_by=("offset",),
    partition_by=("offset",),
)
