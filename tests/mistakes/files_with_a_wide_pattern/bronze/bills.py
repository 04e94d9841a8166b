"""The pattern has alternatives."""

from include.spec import Files, Table

TABLE = Table(
    name="bronze.bills",
    comment="bills",
    source=Files("bills", format="csv", pattern="*.{csv,txt}"),
)
