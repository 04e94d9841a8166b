"""What happens to new columns is misspelt."""

from include.spec import Files, Table

TABLE = Table(
    name="bronze.bills",
    comment="bills",
    source=Files("bills", format="csv", new_columns="rescued"),
)
