"""A view reads another table at the version that it declares, and follows nothing that is committed later."""

import time
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from include.catalog import Catalog
from include.delta import versions
from include.errors import FlowBroken, Unreachable
from include.flows import refreshes
from include.lake import locations
from include.monitoring import lag, lineage, trend
from include.spec import Delta, Flow, Kafka, Replace, Table
from tests.support import lake

NOW = time.time()
EVENTS = Flow(name="silver.events", source=Kafka("events"), comment="")
YESTERDAY = Table(
    name="gold.yesterday",
    source={"today": Delta("silver.events"), "yesterday": Delta("silver.events", version_as_of=1)},
    comment="",
    schema="number BIGINT",
    transform="SELECT * FROM today EXCEPT SELECT * FROM yesterday",
    write=Replace(),
    fresh_minutes=10,
)
PINNED = replace(YESTERDAY, name="gold.pinned", source=Delta("silver.events", version_as_of=1), transform=None)
TABLES = Catalog({table.name: table for table in (EVENTS, YESTERDAY, PINNED)})


def text_of(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


@pytest.fixture(autouse=True)
def three_versions(home, own_settings, silent_port) -> None:
    """Versions 0 to 2, an hour apart, the newest one an hour old."""
    own_settings(SLUICE_KAFKA=f"127.0.0.1:{silent_port}")
    for hours in (3, 2, 1):
        lake.rows(EVENTS.name, NOW - hours * 3_600, 10)


@pytest.mark.parametrize(("hours_ago", "version"), [(3, 0), (2.5, 0), (2, 1), (1.001, 1), (1, 2)])
def test_a_moment_is_the_newest_version_that_was_committed_by_then(hours_ago, version):
    # Commits have whole milliseconds.
    moment = int((NOW - hours_ago * 3_600) * 1_000) / 1_000
    source = Delta(EVENTS.name, timestamp_as_of=text_of(moment))
    assert versions.version_of("gold.pinned", source) == version


@pytest.mark.parametrize(
    ("pinned", "error", "says"),
    [
        ({"version_as_of": 3}, Unreachable, "at version 3, and its newest version is 2: lower version_as_of"),
        (
            {"timestamp_as_of": text_of(NOW - 1_800)},
            Unreachable,
            "as of .*, and its newest version, 2, is of .*: name that moment or an earlier one",
        ),
        (
            {"timestamp_as_of": text_of(NOW - 4 * 3_600)},
            FlowBroken,
            "as of .*, and its log begins with version 0 of .*: name a later one",
        ),
    ],
)
def test_a_version_that_is_not_there_is_named_with_those_that_are(pinned, error, says):
    with pytest.raises(error, match=f"gold.pinned reads silver.events {says}"):
        versions.version_of("gold.pinned", Delta(EVENTS.name, **pinned))


def test_a_version_whose_files_were_deleted_is_refused():
    source = Delta(EVENTS.name, version_as_of=1)
    with pytest.raises(FlowBroken, match="gold.pinned reads silver.events at version 1, and 2 of its 2 files were del"):
        versions.require_files("gold.pinned", source, 1)


def test_a_view_is_no_older_because_the_table_that_it_pins_went_on():
    row_counts = {"read": 10, "kept": 10, "quarantined": 0, "dropped": 0, "broke": {}}
    as_of = {"yesterday": {"table": EVENTS.name, "version": 1}}
    common = {"refresh": "monday", "run_reads": {}, "rows": row_counts, "as_of": as_of}
    lake.write(PINNED.name, NOW - 60, lake.data("0-0", 10, NOW), **common, read={})
    lake.write(YESTERDAY.name, NOW - 60, lake.data("0-0", 10, NOW), **common, read={EVENTS.name: 1})
    lags = lag.measure(TABLES.readers.values(), timeout_seconds=0.2)
    assert {name: entry.versions for name, entry in lags.items() if name != EVENTS.name} == {
        "gold.yesterday.today": 1,
        "gold.yesterday.yesterday": 0,
        "gold.pinned": 0,
    }
    fresh = trend.measure(TABLES, lags)
    assert fresh["gold.pinned"].is_kept
    assert not fresh["gold.yesterday"].is_kept
    assert [table.name for table in TABLES.below(EVENTS.name)] == ["gold.yesterday"]
    refresh = refreshes.newest(YESTERDAY.name)
    assert refresh and refreshes.describe(refresh.commit) == "10 rows from silver.events version 1, in run 'monday'"
    event = lineage.event_of(PINNED.name, PINNED, refreshes.newest(PINNED.name).commit)
    assert [dataset.name for dataset in event.inputs] == [str(locations.table_path(EVENTS.name))]
