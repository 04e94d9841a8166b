"""Delta refuses them."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.wrong_properties",
    comment="",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT",
    properties={"delta.apendOnly": "true", "delta.checkpointInterval": "often"},
)
