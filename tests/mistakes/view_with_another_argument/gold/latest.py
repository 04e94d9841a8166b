"""A transform that calls its sources otherwise."""

from include.spec import Delta, Replace, Table

TABLE = Table(
    name="gold.latest",
    comment="readings",
    source={"events": Delta("bronze.events"), "again": Delta("bronze.events")},
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
    write=Replace(),
    transform=lambda events, others: events,
)
