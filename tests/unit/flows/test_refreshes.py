"""Ledger and monitoring of materialized views: their age, their sources, and the rows that they hold."""

import json
import time
from dataclasses import replace

import pytest

from include.catalog import Catalog
from include.cli.rows import entry_line, origin_lines
from include.cli.status import text as status_text
from include.control.store import database
from include.errors import FlowBroken, LedgerMismatch, UsageError
from include.flows import refreshes
from include.lake import locations
from include.ledger import explain, inspection, row_outcomes, verify
from include.maintenance import table_survey, vacuum_guard
from include.maintenance.table_survey import CompactionPlace, place_of_compaction
from include.monitoring import graph, lag, lineage, status, trend
from include.monitoring.trend import Direction
from include.settings import settings
from include.spec import Delta, Expect, Flow, Kafka, Replace, Table
from tests.support import lake
from tests.support.delta_log import commit, commit_info

BRONZE = Flow(name="bronze.events", source=Kafka("events"), comment="")
CLICKS = Flow(name="silver.clicks", source=Delta("bronze.events"), comment="")
BUYS = Flow(name="silver.buys", source=Delta("bronze.events"), comment="")
RULE = Expect("known", "number IS NOT NULL", otherwise="drop")
JOINED = Table(
    name="gold.joined",
    source={"clicks": Delta("silver.clicks"), "buys": Delta("silver.buys")},
    comment="both",
    schema="number BIGINT",
    transform="SELECT * FROM clicks JOIN buys USING (number)",
    write=Replace(),
    fresh_minutes=10,
    expect=(RULE,),
)
ABOVE = Flow(
    name="gold.above", source=Delta("gold.joined"), comment="", schema="number BIGINT", write=Replace(), fresh_minutes=5
)
TABLES = Catalog({table.name: table for table in (BRONZE, CLICKS, BUYS, JOINED, ABOVE)})
NOW = time.time()


@pytest.fixture(autouse=True)
def silent_broker(home, own_settings, silent_port):
    own_settings(SLUICE_KAFKA=f"127.0.0.1:{silent_port}", SLUICE_CONTROL_URL=f"sqlite:///{home / 'control.db'}")


def write_refresh(
    view: Table,
    at_seconds: float,
    run: str,
    rows: int,
    dropped: int = 0,
    empty: tuple = (),
    method: dict | None = None,
    **read_versions: int,
) -> int:
    """Commits one more version of the view, as a refresh does."""
    row_counts = {
        "read": rows + dropped,
        "kept": rows,
        "quarantined": 0,
        "dropped": dropped,
        "broke": {"known": dropped},
    }
    versions = {
        f"silver.{name}" if name != "joined" else "gold.joined": version for name, version in read_versions.items()
    }
    metadata = {
        "window": 1,
        "step": "refresh",
        "refresh": run,
        "read": versions,
        "run_reads": versions,
        "rows": row_counts,
    }
    metadata |= {"empty_sources": list(empty)} if empty else {}
    metadata |= {"method": method} if method else {}
    path = locations.table_path(view.name)
    version = lake.next_version(path)
    removals = [
        {"remove": {"path": f"{version - 1}-0", "deletionTimestamp": int(at_seconds * 1000), "dataChange": True}}
    ]
    return lake.write(
        view.name, at_seconds, *(removals if version else []), lake.data(f"{version}-0", rows, at_seconds), **metadata
    )


def write_restore(table: Table, to: int) -> None:
    path = locations.table_path(table.name)
    info = commit_info(NOW, operation="RESTORE", operationParameters={"version": str(to)})
    commit(path, lake.next_version(path), info)


@pytest.fixture
def made() -> None:
    """Two silver tables with two versions each. The view has read both of CLICKS, and the first of BUYS."""
    for table in (CLICKS, BUYS):
        lake.rows(table.name, NOW - 900, 10)
        lake.rows(table.name, NOW - 600, 5)
    write_refresh(JOINED, NOW - 800, "monday", 10, clicks=0, buys=0)
    write_refresh(JOINED, NOW - 500, "tuesday", 12, dropped=3, clicks=1, buys=0)
    write_refresh(ABOVE, NOW - 400, "tuesday", 12, joined=1)


def test_a_view_is_no_flow_and_nobody_hosts_it():
    assert list(TABLES.flows) == ["bronze.events", "silver.clicks", "silver.buys"]
    assert [flow.flow for flow in TABLES.drivers()["main"]] == list(TABLES.flows)
    assert list(TABLES.readers)[3:] == ["gold.joined.clicks", "gold.joined.buys", "gold.above"]
    with pytest.raises(UsageError, match=r"'gold.joined' is a materialized view and has no flow: refresh it with"):
        TABLES.flow("gold.joined")


def test_the_views_below_a_table_are_those_made_of_it_by_whatever_way_in_graph_order():
    assert [view.name for view in TABLES.downstream_views("bronze.events")] == ["gold.joined", "gold.above"]
    assert [view.name for view in TABLES.downstream_views("gold.joined")] == ["gold.above"]
    without_views = Catalog({table.name: table for table in (BRONZE, CLICKS)})
    with pytest.raises(UsageError, match="no view reads 'bronze.events', nor what is made of it: name a view, or"):
        without_views.downstream_views("bronze.events")


def test_a_view_is_behind_each_of_its_sources_by_what_its_newest_refresh_has_not_read(made):
    lags = {entry.flow: entry for entry in lag.measure(TABLES.readers.values(), timeout_seconds=0.2).values()}
    clicks, buys, above = (lags[name] for name in ("gold.joined.clicks", "gold.joined.buys", "gold.above"))
    assert (clicks.versions, clicks.is_up_to_date, clicks.seconds) == (0, True, 0)
    assert (buys.versions, buys.is_up_to_date, buys.words) == (1, False, "1 versions")
    assert buys.seconds == pytest.approx(time.time() - NOW + 600, abs=60)
    assert above.is_up_to_date


def test_a_run_that_reads_older_versions_than_the_view_holds_is_refused(made):
    refreshes.require_newest(JOINED.name, "monday", {"silver.clicks": 1, "silver.buys": 0})
    refreshes.require_newest(JOINED.name, "monday", {"silver.clicks": 1, "silver.buys": 1})
    with pytest.raises(
        FlowBroken, match="'monday' reads silver.clicks at version 0, and run 'tuesday' has made it of ver"
    ):
        refreshes.require_newest(JOINED.name, "monday", {"silver.clicks": 0, "silver.buys": 1})
    # After the RESTORE, the view holds the result of the run before.
    write_restore(JOINED, to=0)
    refreshes.require_newest(JOINED.name, "monday", {"silver.clicks": 0, "silver.buys": 0})


def test_a_run_that_reads_what_was_taken_back_since_is_refused(made):
    write_restore(CLICKS, to=0)
    refreshes.require_newest(JOINED.name, "sunday", {"silver.clicks": 2, "silver.buys": 0})
    with pytest.raises(
        FlowBroken, match="silver.clicks at version 1, which version 2 took back since: it went back to 0"
    ):
        refreshes.require_newest(ABOVE.name, "sunday", {"silver.clicks": 1})
    write_restore(CLICKS, to=1)
    refreshes.require_newest(ABOVE.name, "sunday", {"silver.clicks": 1})


def test_a_view_of_a_table_that_was_made_anew_is_refreshed(made):
    write_refresh(JOINED, NOW - 300, "wednesday", 12, clicks=7, buys=0)
    refreshes.require_newest(JOINED.name, "thursday", {"silver.clicks": 1, "silver.buys": 0})


def test_a_deleted_row_makes_a_view_old_although_no_stream_would_read_it(made):
    removal = {"remove": {"path": "1-0", "deletionTimestamp": int(NOW * 1000), "dataChange": True}}
    lake.write(CLICKS.name, NOW - 60, removal)
    clicks_lag = lag.measure(TABLES.readers.values(), timeout_seconds=0.2)["gold.joined.clicks"]
    assert (clicks_lag.versions, clicks_lag.is_up_to_date) == (1, False)


def test_a_view_that_was_never_refreshed_says_so_and_is_behind_by_all_there_is():
    lake.rows(CLICKS.name, NOW - 600, 5)
    clicks_lag = lag.measure([JOINED.readers[0]], timeout_seconds=0.2)["gold.joined.clicks"]
    assert (clicks_lag.words, clicks_lag.versions, clicks_lag.is_up_to_date) == ("nothing read yet", 1, False)


def test_a_view_is_as_stale_as_the_oldest_commit_of_a_source_that_it_has_not_read(made):
    lags = lag.measure(TABLES.readers.values(), timeout_seconds=0.2)
    # The flows are made up to date, so that only the lag of the views counts.
    flow_lags = {name: replace(lags["gold.above"], flow=name) for name in TABLES.flows}
    freshness_of = trend.measure(TABLES, {**lags, **flow_lags})
    assert freshness_of["gold.joined"].seconds == pytest.approx(time.time() - NOW + 600, abs=60)
    assert (freshness_of["gold.joined"].by, freshness_of["gold.joined"].is_kept) == ("gold.joined.buys", False)
    # This view has read all of its source, and the source lacks that commit.
    assert (freshness_of["gold.above"].by, freshness_of["gold.above"].is_kept) == ("gold.joined.buys", False)


def test_status_shows_a_view_for_what_it_is_and_not_as_sick(made):
    database.connect(settings().control_url)
    statuses = {entry.flow: entry for entry in status.statuses(TABLES, timeout_seconds=0.2)}
    buys = statuses["gold.joined.buys"]
    assert (buys.state, buys.wanted, buys.trend.verdict) == ("VIEW", None, Direction.RESTING)
    assert statuses["gold.joined.clicks"].trend.verdict is Direction.UP_TO_DATE
    text = status_text(statuses.values())
    assert "gold.above" in text
    assert "gold.above:" not in text


def test_status_says_which_views_are_incremental_and_why_the_others_are_not(made):
    database.connect(settings().control_url)
    method = {"definition": "x", "table_ids": {}, "recomputed": None}
    write_refresh(JOINED, NOW - 300, "friday", 12, clicks=1, buys=0, method=method)
    write_refresh(ABOVE, NOW - 300, "friday", 12, joined=2, method=method | {"recomputed": "it sorts its rows"})
    statuses = list(status.statuses(TABLES, timeout_seconds=0.2))
    assert {entry.table: entry.as_json()["refresh"] for entry in statuses if entry.state == "VIEW"} == {
        "gold.joined": "incremental",
        "gold.above": "full",
    }
    text = status_text(statuses)
    assert (text.count("VIEW, incremental"), text.count("VIEW, full")) == (2, 1)
    assert text.count("gold.above: its last refresh recomputed all rows: it sorts its rows") == 1


def test_the_graph_has_an_edge_from_each_source_into_the_view(made):
    edges = [edge for edge in graph.build_graph(TABLES).edges if edge.target in ("gold.joined", "gold.above")]
    assert [(edge.source, edge.target, edge.flow) for edge in edges] == [
        ("silver.clicks", "gold.joined", "gold.joined.clicks"),
        ("silver.buys", "gold.joined", "gold.joined.buys"),
        ("gold.joined", "gold.above", "gold.above"),
    ]


def test_inspect_tells_each_refresh_with_its_run_and_what_it_read(made):
    result = inspection.inspect(JOINED, 10)
    assert (result.states, result.others, result.faults, result.restarts) == ({}, {"refresh": 2}, [], {})
    newest, previous = map(entry_line, result.newest)
    assert newest.endswith(": 12 rows from silver.clicks version 1, silver.buys version 0, in run 'tuesday'")
    assert previous.endswith(": 10 rows from silver.clicks version 0, silver.buys version 0, in run 'monday'")
    origin = explain.of_version(TABLES, JOINED, 1)
    assert list(origin_lines(origin)) == [
        "  version 1 of gold.joined is a refresh: 12 rows from silver.clicks version 1, silver.buys version 0, in run "
        "'tuesday'"
    ]


def test_verify_holds_a_view_against_what_its_newest_refresh_counted(made):
    verdict = verify.verify(JOINED)
    assert (verdict.refreshes, verdict.notes) == (2, [])
    lake.rows(JOINED.name, NOW, 1)
    with pytest.raises(LedgerMismatch, match="gold.joined holds 13 rows, and its refresh, version 1, 12"):
        verify.verify(JOINED)


def test_a_refresh_that_does_not_account_for_its_rows_is_named():
    write_refresh(JOINED, NOW, "monday", 10, clicks=0, buys=0)
    path = locations.table_path(JOINED.name) / "_delta_log" / f"{0:020}.json"
    path.write_text(path.read_text().replace(r"\"read\": 10", r"\"read\": 11"))
    with pytest.raises(LedgerMismatch, match="gold.joined: run 'monday' computed 11 rows, and accounts for others"):
        verify.verify(JOINED)


def test_the_rules_of_a_view_are_counted_for_each_refresh(made):
    batches = row_outcomes.batches(JOINED, 10)
    assert [(batch.name, batch.read, batch.written, batch.dropped) for batch in batches] == [
        ("gold.joined in run 'tuesday'", 15, 12, 3),
        ("gold.joined in run 'monday'", 10, 10, 0),
    ]
    [rule] = row_outcomes.rules(JOINED, batches)
    assert (rule.rows, rule.broke) == (25, 3)


def test_lineage_tells_a_refresh_once_with_the_versions_it_read(made):
    assert lineage.emit_events(TABLES) == {
        "gold.joined": "refresh, version 1",
        "gold.above": "refresh, version 0",
    }
    assert lineage.emit_events(TABLES) == {}
    lines = (settings().home / "lineage" / "events.ndjson").read_text().splitlines()
    event = json.loads(lines[0])
    assert event["job"]["name"] == "gold.joined"
    assert event["job"]["facets"]["jobType"]["processingType"] == "BATCH"
    inputs = [(dataset["name"], dataset["facets"]["version"]["datasetVersion"]) for dataset in event["inputs"]]
    assert inputs == [
        (str(locations.table_path(name)), version) for name, version in (("silver.clicks", "1"), ("silver.buys", "0"))
    ]


def test_a_view_is_looked_after_in_windows_and_holds_back_no_vacuum_of_what_it_reads(made):
    engine = database.connect(settings().control_url)
    [survey] = table_survey.survey(engine, JOINED, TABLES)
    assert survey.held.name.startswith(vacuum_guard.PROMISE)
    assert vacuum_guard.readers(TABLES, "silver.clicks") == {}
    assert place_of_compaction(JOINED, late_commits_fail=True)[0] is CompactionPlace.WINDOW


def test_a_run_is_found_in_the_log_also_when_others_came_later(made):
    monday_refresh = refreshes.in_run(JOINED.name, "monday")
    assert monday_refresh and monday_refresh.commit.version == 0
    assert refreshes.in_run(JOINED.name, "wednesday") is None
    newest = refreshes.newest(JOINED.name)
    assert newest and newest.run == "tuesday"
    assert refreshes.newest("gold.nothing") is None


def notes() -> list[str]:
    """The lines of `status`."""
    return status_text(status.statuses(TABLES, timeout_seconds=0.2)).splitlines()


def test_a_view_that_was_never_refreshed_says_so_and_what_it_waits_for():
    lake.rows(CLICKS.name, NOW - 900, 10)
    next_time = """next by `airflow dags trigger refresh -c '{"table": "gold.joined"}'`"""
    assert f"gold.joined: never refreshed: silver.buys, which it reads, holds no rows yet; {next_time}" in notes()
    assert refreshes.missing_sources([JOINED, ABOVE]) == {"gold.joined": "silver.buys", "gold.above": "gold.joined"}
    lake.rows(BUYS.name, NOW - 900, 10)
    assert f"gold.joined: never refreshed; {next_time}" in notes()
    assert refreshes.missing_sources([JOINED, ABOVE]) == {}
    sentence = refreshes.next_refresh_words(replace(JOINED, schedule="0 3 * * *"))
    assert sentence.startswith("it comes next by its schedule '0 3 * * *' (UTC), or by `airflow")


def test_a_view_that_was_refreshed_before_its_source_held_rows_says_so_until_the_next(made):
    assert not any("held no rows" in line for line in notes())
    write_refresh(JOINED, NOW - 300, "wednesday", 0, empty=("silver.buys",), clicks=1, buys=0)
    assert any(line.startswith("gold.joined: last refreshed when silver.buys held no rows; next") for line in notes())
    write_refresh(JOINED, NOW - 200, "thursday", 12, clicks=1, buys=1)
    assert not any("held no rows" in line for line in notes())
