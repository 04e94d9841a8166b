"""Which action of `control.stream` helps against an error."""

# By error class, the action that helps where mending and restarting does not.
REMEDIES = {
    "CHECKPOINT_LOST": "reset checkpoint",
    "CHECKPOINT_DAMAGED": "reset checkpoint",
    "RELEASED": "reset checkpoint",
    "TOPIC_REPLACED": "accept data loss",
    "KAFKA_DATA_LOSS": "accept data loss",
}


def remedy(error: str) -> str:
    """The action that helps against an error of this class, also of one of its subclasses."""
    return REMEDIES.get(error.split(".")[0], "restart")
