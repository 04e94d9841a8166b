"""Bytes are a text."""

from include.spec import Files, Table

TABLE = Table(
    name="bronze.bills",
    comment="bills",
    source=Files("bills", format="csv", max_bytes="1 GB"),
)
