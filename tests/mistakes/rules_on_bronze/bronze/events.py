"""Would keep some messages only."""

from include.spec import Expect, Kafka, Table

TABLE = Table(
    name="bronze.events",
    comment="events",
    source=Kafka("events"),
    expect=(Expect("known", "key IS NOT NULL"),),
)
