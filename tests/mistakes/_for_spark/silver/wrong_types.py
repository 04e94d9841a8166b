"""Each column is compared."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.wrong_types",
    comment="",
    source=Delta("bronze.events"),
    schema="key STRING, offset INT",
)
