"""Where each customer lived, and from when until when."""

from include.spec import Debezium, Delta, Table, Upsert

TABLE = Table(
    name="silver.customer_history",
    comment="Where each customer lived, and from when until when",
    source=Delta("bronze.customers"),
    parse=Debezium("value", into=("user_id", "country")),
    schema="user_id STRING, country STRING, _database_time TIMESTAMP, "
    "_errors ARRAY<STRUCT<field: STRING, message: STRING>>",
    write=Upsert(("user_id",), sequence_by="_database_time", deletes="_op = 'd'", truncates="_op = 't'", scd=2),
)
