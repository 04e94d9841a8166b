"""reset_allowed has to be True or False."""

from include.spec import Kafka, Table

TABLE = Table(name="bronze.events", comment="events", source=Kafka("events"), reset_allowed="never")
