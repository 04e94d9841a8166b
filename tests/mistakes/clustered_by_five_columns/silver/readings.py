"""More than Delta takes."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="a INT, b INT, c INT, d INT, e INT, f INT",
    cluster_by=("a", "b", "c", "d", "e"),
)
