"""Every change of the purchases in the shop's database, as Debezium sent it."""

from include.spec import Kafka, Table

TABLE = Table(
    name="bronze.purchases",
    comment="Every change of the purchases in the shop's database, as it came",
    source=Kafka("shop.purchases"),
)
