"""Delta stores no such type."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, since INTERVAL DAY TO SECOND",
)
