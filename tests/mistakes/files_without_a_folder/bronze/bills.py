"""There is no folder."""

from include.spec import Files, Table

TABLE = Table(
    name="bronze.bills",
    comment="bills",
    source=Files("", format="csv"),
)
