"""Promises no time at all."""

from include.spec import Delta, Maintenance, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
    maintain=Maintenance(time_travel_hours=0),
)
