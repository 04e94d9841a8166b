"""Every row would come twice."""

from include.spec import Kafka, Table

TABLE = Table(name="bronze.events", comment="events", source={"eu": Kafka("events"), "us": Kafka("events")})
