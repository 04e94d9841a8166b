"""Bronze is typed."""

from include.spec import Cast, Files, Table

TABLE = Table(
    name="bronze.bills",
    comment="bills",
    source=Files("bills", format="csv"),
    parse=Cast(into=("day",)),
    schema="day DATE, _errors ARRAY<STRUCT<field: STRING, message: STRING>>",
)
