"""A struct lacks a comma."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.struct_without_a_comma",
    comment="",
    source=Delta("bronze.events"),
    schema="key BINARY, place STRUCT<x: INT y: INT>",
)
