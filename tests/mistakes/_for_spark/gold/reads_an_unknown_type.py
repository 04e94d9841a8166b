"""Right, but nobody knows the columns of its source."""

from include.spec import Delta, Table

TABLE = Table(
    name="gold.reads_an_unknown_type",
    comment="",
    source=Delta("silver.unknown_type"),
    schema="key STRING, ofset BIGINT",
)
