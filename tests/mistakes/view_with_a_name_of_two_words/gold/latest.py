"""SQL could not call it so."""

from include.spec import Delta, Replace, Table

TABLE = Table(
    name="gold.latest",
    comment="readings",
    source={"all events": Delta("bronze.events")},
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
    write=Replace(),
    transform="SELECT * FROM events",
)
