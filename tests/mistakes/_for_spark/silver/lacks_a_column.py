"""The transform calls it otherwise."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.lacks_a_column",
    comment="",
    source=Delta("bronze.events"),
    schema="key BINARY, max_dep_delay BIGINT",
    transform="SELECT key, offset AS max_delay FROM source",
)
