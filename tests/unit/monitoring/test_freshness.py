"""The freshness of a table is the age of the oldest data that it lacks, wherever that data waits."""

from include.catalog import Catalog
from include.flows.lag import Lag
from include.monitoring import trend
from include.monitoring.trend import Freshness
from include.spec import Delta, Flow, Kafka

BRONZE = Flow(name="bronze.events", source=Kafka("events"), comment="")
SILVER = Flow(name="silver.readings", source=Delta("bronze.events"), comment="", fresh_minutes=10)
GOLD = Flow(name="gold.sums", source=Delta("silver.readings"), comment="", fresh_minutes=20)
TABLES = Catalog({table.name: table for table in (BRONZE, SILVER, GOLD)})


def measure(bronze: float | None, silver: float | None = 0, gold: float | None = 0) -> dict[str, Freshness]:
    """Measure freshness from the age in seconds of what each flow has not read. None: unknown."""
    ages = {"bronze.events": bronze, "silver.readings": silver, "gold.sums": gold}
    lags = {
        flow: Lag(flow, "versions", count=int(bool(age)), seconds=age, unknown="away" if age is None else None)
        for flow, age in ages.items()
    }
    return trend.measure(TABLES, lags)


def test_a_table_is_fresh_while_nothing_is_unread_however_long_ago_something_came():
    results = measure(0, 0, 0)
    assert [(value.seconds, value.by) for value in results.values()] == [(0, None)] * 3
    assert (results["silver.readings"].is_kept, results["bronze.events"].is_kept) == (True, None)
    assert results["silver.readings"].words == "fresh, promised 10 min"
    assert results["bronze.events"].words == ""


def test_what_is_unread_for_longer_than_promised_breaks_the_promise():
    assert measure(0, 600)["silver.readings"].is_kept
    result = measure(0, 601)["silver.readings"]
    assert not result.is_kept
    assert result.words == "10.0 min old, promised 10 min: see silver.readings"


def test_what_waits_further_up_makes_the_tables_below_as_old_and_its_flow_is_named():
    results = measure(1_800, 60)
    assert [(value.seconds, value.by, value.is_kept) for value in results.values()] == [
        (1_800, "bronze.events", None),
        (1_800, "bronze.events", False),
        (1_800, "bronze.events", False),
    ]


def test_a_source_that_does_not_answer_leaves_the_promise_unknown_unless_it_is_broken_anyway():
    results = measure(None, 60, 30)
    assert [(value.seconds, value.is_kept) for value in results.values()] == [(None, None)] * 3
    assert results["gold.sums"].words == "unknown, promised 20 min"
    results = measure(None, 900, 30)
    assert (results["silver.readings"].is_kept, results["silver.readings"].by) == (False, "silver.readings")
    assert results["gold.sums"].is_kept is None, "900 s are within its 20 minutes, and bronze may hold older things"
