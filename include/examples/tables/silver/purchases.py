"""The purchases as the shop's database has them. One without an amount waits in the quarantine for its correction."""

from include.spec import Debezium, Delta, Expect, Table, Upsert

TABLE = Table(
    name="silver.purchases",
    comment="The purchases as the shop's database has them",
    source=Delta("bronze.purchases"),
    parse=Debezium("value", into=("id", "user_id", "amount", "time")),
    schema="id BIGINT, user_id STRING, amount DECIMAL(10,2), time TIMESTAMP, _sequence BIGINT, _rescued_data STRING, "
    "_errors ARRAY<STRUCT<field: STRING, message: STRING>>",
    write=Upsert(("id",), sequence_by="_sequence", deletes="_op = 'd'", truncates="_op = 't'"),
    expect=(Expect("an amount above zero", "amount > 0"),),
)
