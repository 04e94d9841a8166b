"""Bronze de-duplicates."""

from include.spec import Append, Files, Table

TABLE = Table(
    name="bronze.bills",
    comment="bills",
    source=Files("bills", format="csv"),
    schema="day STRING",
    write=Append(unique=("day",)),
)
