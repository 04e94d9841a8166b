"""A wrong definition is a case: a good definition with a replaced value, and the sentences that refuse it."""

from dataclasses import dataclass

from include.spec import Bucket, Delta, Expect, Files, Kafka, Replace, Table, Upsert

KNOWN = Expect("known", "key IS NOT NULL")
MINUTE = Bucket("minute", of="timestamp", unit="minute")

EVENTS = Table(name="bronze.events", comment="events", source=Kafka("events"))
BILLS = Table(name="bronze.bills", comment="bills", source=Files("bills", format="csv"))
READINGS = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
)
CHANGES = Table(
    name="gold.readings",
    comment="changes of readings",
    source=Delta("silver.readings", changes=True),
    schema="key BINARY",
)
BY_MINUTE = Table(
    name="gold.by_minute",
    comment="an aggregate",
    source=Delta("bronze.events"),
    schema="key BINARY, minute TIMESTAMP, offset BIGINT",
    write=Upsert(keys=("key", "minute"), recompute=MINUTE),
)
LATEST = Table(
    name="gold.latest",
    comment="a view",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
    write=Replace(),
)
GOOD = (EVENTS, BILLS, READINGS, CHANGES, BY_MINUTE, LATEST)


@dataclass(frozen=True)
class Case:
    """tables: the first one is refused, the others are valid. `bronze.events` is always among them.

    sentences: all messages, each from the path of the file.
    """

    name: str
    tables: tuple[Table, ...]
    sentences: tuple[str, ...]


def case(name: str, tables: Table | tuple[Table, ...], *sentences: str) -> Case:
    """tables: the wrong table, or the wrong table and those that make it wrong."""
    case_tables = tables if isinstance(tables, tuple) else (tables,)
    other_tables = () if EVENTS.name in [table.name for table in case_tables] else (EVENTS,)
    return Case(name, (*case_tables, *other_tables), sentences)
