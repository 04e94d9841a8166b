"""The name of a branch becomes part of a flow's."""

from include.spec import Kafka, Table

TABLE = Table(name="bronze.events", comment="events", source={"EU west": Kafka("events")})
