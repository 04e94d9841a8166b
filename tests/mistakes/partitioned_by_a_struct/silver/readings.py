"""Delta makes no folder of it."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="place STRUCT<x: INT>, offset BIGINT",
    partition_by=("place",),
)
