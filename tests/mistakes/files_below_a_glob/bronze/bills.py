"""The folder is a pattern."""

from include.spec import Files, Table

TABLE = Table(
    name="bronze.bills",
    comment="bills",
    source=Files("bills/2019-*", format="csv"),
)
