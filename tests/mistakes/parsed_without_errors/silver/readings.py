"""Would lose what cannot be typed without a trace."""

from include.spec import Delta, Json, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="device STRING",
    parse=Json("value", into=("device",)),
)
