"""The transform misspells a method."""

from include.spec import Delta, Table


def transform(events):
    return events.selct("key", "offset")


TABLE = Table(
    name="silver.unknown_method",
    comment="",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT",
    transform=transform,
)
