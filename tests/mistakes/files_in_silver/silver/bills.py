"""Silver reads files."""

from include.spec import Files, Table

TABLE = Table(
    name="silver.bills",
    comment="bills",
    source=Files("bills", format="csv"),
)
