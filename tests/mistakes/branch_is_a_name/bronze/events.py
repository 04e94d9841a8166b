"""A branch is a source."""

from include.spec import Kafka, Table

TABLE = Table(name="bronze.events", comment="events", source={"eu": Kafka("events"), "us": "events-us"})
