"""A column is declared that every table of files has."""

from include.spec import Files, Table

TABLE = Table(
    name="bronze.bills",
    comment="bills",
    source=Files("bills", format="csv"),
    schema="day STRING, _filename STRING",
)
