"""The action of `control.stream` that cures an error."""

# By error class, the action that is needed where a correction and a restart do not help.
REMEDIES = {
    "CHECKPOINT_LOST": "reset checkpoint",
    "CHECKPOINT_DAMAGED": "reset checkpoint",
    "TABLE_RESTORED": "reset checkpoint",
    "RELEASED": "reset checkpoint",
    "TOPIC_REPLACED": "accept data loss",
    "KAFKA_DATA_LOSS": "accept data loss",
}


def remedy(error: str) -> str:
    """The action that cures an error of this class or of one of its subclasses."""
    return REMEDIES.get(error.split(".")[0], "restart")
