"""How a wrong definition is written down: a good one with something replaced, and the sentences that refuse it."""

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
    """tables: the first is refused, and nothing is wrong with the others alone. One is always `bronze.events`.

    sentences: all that are said, each from the path of its file on.
    """

    name: str
    tables: tuple[Table, ...]
    sentences: tuple[str, ...]


def case(name: str, tables: Table | tuple[Table, ...], *sentences: str) -> Case:
    """tables: the wrong one, or that and those beside it without which it would not be wrong."""
    given = tables if isinstance(tables, tuple) else (tables,)
    beside = () if EVENTS.name in [table.name for table in given] else (EVENTS,)
    return Case(name, (*given, *beside), sentences)
