"""One of its sources is declared nowhere."""

from include.spec import Delta, Kafka, Table

TABLE = Table(name="bronze.events", comment="events", source={"eu": Kafka("events"), "us": Delta("bronze.event")})
