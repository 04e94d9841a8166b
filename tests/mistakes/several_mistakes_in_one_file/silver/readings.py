"""Each has its own sentence."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT",
    driver="my driver",
    schedule="nightly",
    cluster_by=("ofset",),
    time_column="offset",
)
