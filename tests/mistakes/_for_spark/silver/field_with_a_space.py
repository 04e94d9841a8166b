"""Delta refuses the name of a field."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.field_with_a_space",
    comment="",
    source=Delta("bronze.events"),
    schema="key BINARY, place STRUCT<`the x`: INT>",
    transform="SELECT key, named_struct('the x', partition) AS place FROM source",
)
