"""Its source has no such column."""

from include.spec import Cast, Delta, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    parse=Cast(into=("topik",)),
    schema="topik INT, _errors ARRAY<STRUCT<field: STRING, message: STRING>>",
)
