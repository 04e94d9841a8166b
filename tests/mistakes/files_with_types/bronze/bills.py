"""A column of CSV has a type."""

from include.spec import Files, Table

TABLE = Table(
    name="bronze.bills",
    comment="bills",
    source=Files("bills", format="csv"),
    schema="day STRING, what_it_cost DECIMAL(10,2)",
)
