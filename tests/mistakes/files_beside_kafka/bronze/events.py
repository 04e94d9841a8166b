from include.spec import Files, Kafka, Table

TABLE = Table(
    name="bronze.events",
    comment="",
    source={"live": Kafka("events"), "files": Files("events", format="json")},
)
