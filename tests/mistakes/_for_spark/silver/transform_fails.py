"""The transform is wrong for any rows."""

from include.spec import Delta, Table


def transform(events):
    columns = ("key", "offset")
    return events.select(columns[2])


TABLE = Table(
    name="silver.transform_fails",
    comment="",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT",
    transform=transform,
)
