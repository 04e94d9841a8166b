"""The transform misspells a column."""

from include.spec import Delta, Table


def transform(events):
    known = events.where("key IS NOT NULL")
    return known.select("key", "ofset")


TABLE = Table(
    name="silver.unknown_column",
    comment="",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT",
    transform=transform,
)
