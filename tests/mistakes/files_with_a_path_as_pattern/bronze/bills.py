"""The pattern names a folder."""

from include.spec import Files, Table

TABLE = Table(
    name="bronze.bills",
    comment="bills",
    source=Files("bills", format="csv", pattern="2019/*.csv"),
)
