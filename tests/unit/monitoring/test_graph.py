"""The medallion graph: tables and their sources, with the lag on the edges, for a handmade lake."""

import time
from dataclasses import replace

import pytest

from include.catalog import Catalog
from include.cli.status import graph_lines
from include.monitoring import graph
from include.monitoring.graph import Graph
from include.spec import Delta, Expect, Files, Flow, Kafka, Table
from tests.support import lake
from tests.support.lake import checkpoint, delta_offset

BILLS = Flow(name="bronze.bills", source=Files("/in/bills", format="csv"), comment="")
CLICKS = Table(name="bronze.clicks", source={"eu": Kafka("clicks-eu"), "us": Kafka(pattern="us-.*")}, comment="")
STEP = Flow(name="silver.clean", source=Delta(CLICKS.name), comment="", temporary=True)
SILVER = Flow(
    name="silver.clicks",
    source=Delta(CLICKS.name),
    comment="",
    steps=(STEP,),
    expect=(Expect("known", "number IS NOT NULL"),),
)
OTHER = replace(SILVER, name="silver.other", expect=())
TABLES = Catalog({table.name: table for table in (BILLS, CLICKS, SILVER, OTHER)}, {STEP.name: STEP})


@pytest.fixture(autouse=True)
def silent_broker(home, own_settings, silent_port):
    own_settings(SLUICE_KAFKA=f"127.0.0.1:{silent_port}")


@pytest.fixture
def found() -> Graph:
    current_time = time.time()
    for count in (10, 20, 40):
        lake.rows(CLICKS.name, current_time, count)
    lake.rows(SILVER.name, current_time, 30)
    lake.rows(SILVER.quarantine, current_time, 2)
    checkpoint(SILVER.flow, delta_offset(2))
    checkpoint(OTHER.flow, delta_offset(3))
    return graph.build_graph(TABLES)


def test_every_source_step_and_table_is_a_node_with_its_rows_and_those_in_quarantine(found: Graph):
    assert {(node.name, node.kind, node.rows, node.quarantined) for node in found.nodes} == {
        ("/in/bills", "folder", None, None),
        ("kafka clicks-eu", "topic", None, None),
        ("kafka /us-.*/", "topic", None, None),
        ("silver.clean", "step", None, None),
        ("bronze.bills", "table", None, None),
        ("bronze.clicks", "table", 70, None),
        ("silver.clicks", "table", 30, 2),
        ("silver.other", "table", None, None),
    }


def test_edges_bear_flow_and_lag_and_a_step_that_two_tables_read_is_entered_once(found: Graph):
    assert [(edge.source, edge.target, edge.flow) for edge in found.edges] == [
        ("/in/bills", "bronze.bills", "bronze.bills"),
        ("kafka clicks-eu", "bronze.clicks", "bronze.clicks.eu"),
        ("kafka /us-.*/", "bronze.clicks", "bronze.clicks.us"),
        ("bronze.clicks", "silver.clean", None),
        ("silver.clean", "silver.clicks", "silver.clicks"),
        ("silver.clean", "silver.other", "silver.other"),
    ]
    lags = {edge.flow: edge.lag for edge in found.edges if edge.lag}
    assert (lags["silver.clicks"].rows, lags["silver.other"].is_up_to_date) == (40, True)
    assert found.edges[4].as_json()["lag"]["words"] == "1 versions"
    assert found.edges[3].as_json()["lag"] is None


def test_as_text_each_node_stands_below_what_it_reads(found: Graph):
    assert list(graph_lines(found))[2:] == [
        "kafka clicks-eu",
        "  bronze.clicks  70 rows, bronze.clicks.eu unknown: no broker",
        "    silver.clean  (a step, not stored)",
        "      silver.clicks  30 rows, 2 quarantined, behind by 1 versions",
        "      silver.other  not stored yet, up to date",
        "kafka /us-.*/",
        "  bronze.clicks  70 rows, bronze.clicks.us unknown: no broker",
        "    silver.clean  (a step, not stored)",
        "      silver.clicks  30 rows, 2 quarantined, behind by 1 versions",
        "      silver.other  not stored yet, up to date",
    ]
