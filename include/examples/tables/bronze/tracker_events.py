"""Every message the fitness trackers sent, as it came."""

from include.spec import Kafka, Table

TABLE = Table(
    name="bronze.tracker_events",
    comment="Every message the fitness trackers sent, as it came",
    source=Kafka("tracker-events"),
)
