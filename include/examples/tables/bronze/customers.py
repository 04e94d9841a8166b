"""Every change of the customers in the shop's database, as Debezium sent it."""

from include.spec import Kafka, Table

TABLE = Table(
    name="bronze.customers",
    comment="Every change of the customers in the shop's database, as it came",
    source=Kafka("shop.customers"),
)
