"""The customers as they are today. Who closes the account leaves the table."""

from include.spec import Debezium, Delta, Table, Upsert

TABLE = Table(
    name="silver.customers",
    comment="The customers as they are today",
    source=Delta("bronze.customers"),
    parse=Debezium("value", into=("user_id", "country")),
    schema="user_id STRING, country STRING, _sequence BIGINT, _errors ARRAY<STRUCT<field: STRING, message: STRING>>",
    write=Upsert(("user_id",), sequence_by="_sequence", deletes="_op = 'd'", truncates="_op = 't'"),
)
