"""Spark compares no two maps."""

from include.spec import Append, Delta, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="tags MAP<STRING, INT>, offset BIGINT",
    write=Append(unique=("tags",)),
)
