"""The transform makes two of one name."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.makes_a_column_twice",
    comment="",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT",
    transform="SELECT key, offset, partition AS Offset FROM source",
)
