"""The graph of all declared tables."""

import itertools
from dataclasses import replace

import pytest

from include import catalog
from include.catalog import Catalog
from include.errors import DeclarationError, UsageError
from include.maintenance import vacuum_guard
from include.project import examination, table_files
from include.project.examination import Examination
from include.project.table_files import TableFile
from include.spec import KAFKA_SCHEMA, Delta, Kafka, Table, ddl, table_of


def table(name: str, source: str | None = None, driver: str = "main", schema: str = KAFKA_SCHEMA) -> Table:
    return Table(
        name=name, comment="", source=Delta(source) if source else Kafka("events"), driver=driver, schema=schema
    )


def test_every_table_of_the_repository_is_right_and_comes_after_what_it_reads():
    flows = list(catalog.load().flows.values())
    assert {"bronze.tracker_events", "silver.tracker_readings", "gold.heart_rate_by_model"} <= {
        flow.name for flow in flows
    }
    earlier_tables: set[str] = set()
    for flow in flows:
        if isinstance(flow.source, Delta):
            assert flow.source.table in earlier_tables
        earlier_tables.add(flow.name)


def test_the_graph_order_does_not_depend_on_the_order_of_the_files():
    chain = [
        table("gold.a", "silver.z"),
        table("silver.z", "silver.m"),
        table("silver.m", "bronze.q"),
        table("bronze.q"),
    ]
    for files in itertools.permutations(chain):
        order = examination.in_graph_order({declaration.name: declaration for declaration in files})
        assert order == ["bronze.q", "silver.m", "silver.z", "gold.a"]


def test_flows_that_name_one_driver_share_it_in_graph_order():
    tables = [table("bronze.a"), table("bronze.b", driver="other"), table("silver.a", "bronze.a")]
    drivers = Catalog({declaration.name: declaration for declaration in tables}).drivers()
    assert {name: [flow.name for flow in flows] for name, flows in drivers.items()} == {
        "main": ["bronze.a", "silver.a"],
        "other": ["bronze.b"],
    }


def test_each_branch_of_a_table_is_a_flow_of_its_own_in_the_driver_of_the_table():
    source = {"": Kafka("a"), "eu": Kafka("b"), "copies": Delta("bronze.z")}
    tables = [table("bronze.z"), replace(table("bronze.a"), source=source), table("silver.a", "bronze.a")]
    graph = Catalog({declaration.name: declaration for declaration in tables})
    names = ["bronze.z", "bronze.a", "bronze.a.eu", "bronze.a.copies", "silver.a"]
    assert list(graph.flows) == [flow.flow for flow in graph.drivers()["main"]] == names
    assert (graph.flow("bronze.a.eu").source, graph.flow("bronze.a.eu").branch) == (Kafka("b"), "eu")
    assert examination.in_graph_order({declaration.name: declaration for declaration in reversed(tables)}) == [
        "bronze.z",
        "bronze.a",
        "silver.a",
    ]
    assert {table_of(name) for name in names} == {"bronze.z", "bronze.a", "silver.a"}
    assert list(vacuum_guard.readers(graph, "bronze.z")) == ["bronze.a.copies"]


def test_a_branch_has_the_transform_of_its_name_or_the_only_one():
    both = replace(table("bronze.a"), source={"eu": Kafka("a"), "us": Kafka("b")}, transform="SELECT 1")
    assert [flow.transform for flow in both.flows] == ["SELECT 1", "SELECT 1"]
    only_eu = replace(both, transform={"eu": "SELECT 2"})
    assert [(flow.flow, flow.transform) for flow in only_eu.flows] == [
        ("bronze.a.eu", "SELECT 2"),
        ("bronze.a.us", None),
    ]


def test_a_table_that_nobody_declared_is_answered_with_the_likeliest_name():
    with pytest.raises(UsageError) as refusal:
        catalog.load().table("silver.tracker_reading")
    assert str(refusal.value) == "there is no table 'silver.tracker_reading': did you mean 'silver.tracker_readings'?"


def test_a_flow_is_found_by_its_name():
    assert catalog.load().flow("gold.heart_rate_by_model").name == "gold.heart_rate_by_model"


def test_a_flow_nobody_declared_is_answered_with_the_likeliest_name():
    with pytest.raises(UsageError) as refusal:
        catalog.load().flow("silver.tracker_reading")
    assert str(refusal.value) == "there is no flow 'silver.tracker_reading': did you mean 'silver.tracker_readings'?"


def test_a_flow_like_no_other_is_answered_with_all_names():
    with pytest.raises(UsageError) as refusal:
        Catalog({"bronze.a": table("bronze.a"), "bronze.b": table("bronze.b")}).flow("xyz")
    assert str(refusal.value) == "there is no flow 'xyz': there are bronze.a, bronze.b"


@pytest.mark.parametrize(
    ("schema", "columns"),
    [
        ("a INT", ["a"]),
        ("a DECIMAL(9,3), b INT", ["a", "b"]),
        ("a ARRAY<STRUCT<x: INT, y: MAP<STRING, INT>>>, b INT", ["a", "b"]),
        ("a INT COMMENT 'one, two', b INT", ["a", "b"]),
        ("a INT COMMENT 'x (y < z', b INT", ["a", "b"]),
        ("a INT COMMENT 'it''s, so', b INT", ["a", "b"]),
        ("\n  `a` INT,\n\t`b` INT NOT NULL\n", ["a", "b"]),
        ("a INT COMMENT 'it\\'s, so', b INT", ["a", "b"]),
        ('a INT COMMENT "one, two", b INT', ["a", "b"]),
        ("`a b` INT, c INT", ["a b", "c"]),
        ("a: INT, b: INT", ["a", "b"]),
        ("a INT, -- one, two\n /* b INT, */ c INT", ["a", "c"]),
        ("`a``, b` INT, c INT", ["a`, b", "c"]),
        ("a TIMESTAMP WITHOUT TIME ZONE, b INTERVAL DAY TO SECOND, c STRING COLLATE UNICODE NOT NULL", ["a", "b", "c"]),
    ],
)
def test_the_columns_of_a_schema_are_read_as_spark_reads_them(schema: str, columns: list[str], spark):
    from pyspark.sql.types import StructType

    assert StructType.fromDDL(schema).fieldNames() == columns
    assert ddl.columns(schema) == columns
    assert ddl.without_comma(schema) == []


def test_a_quarantine_is_named_after_its_table():
    assert table("silver.tracker_readings").quarantine == "quarantine.silver_tracker_readings"
    assert table("silver.tracker_readings").layer == "silver"


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (
            TableFile("include.tables", "silver/flights.py"),
            "here/silver/Flights.py: silver.Flights and silver.flights differ in capital letters alone, and SQL and "
            "some disks take them for one: rename one of them",
        ),
        (
            TableFile("include.tables", "silver/Flights.py"),
            "here/silver/Flights.py: include/tables/silver/Flights.py declares silver.Flights, too: rename one of them",
        ),
    ],
)
def test_two_files_that_sql_takes_for_one_table_are_refused(other: TableFile, sentence: str):
    file = TableFile("here", "silver/Flights.py")
    with pytest.raises(DeclarationError) as refusal:
        table_files.import_table(file, [file, other])
    assert str(refusal.value) == sentence


def test_right_tables_are_told_from_wrong_ones_and_from_those_that_read_wrong_ones():
    valid_catalog, result = catalog.examine("tests.mistakes.several_files_are_wrong")
    assert list(valid_catalog.tables) == ["bronze.events", "silver.right"]
    assert set(result.broken) == {"silver.others", "silver.readings"}
    assert result.unchecked == {"gold.waiting": "silver.readings", "gold.below": "gold.waiting"}


def test_a_check_that_fails_itself_is_a_sentence_about_the_file():
    result = Examination()
    with result.collect_mistakes("silver.a", "include/tables/silver/a.py"):
        raise AttributeError("no such thing")
    assert result.sentences == [
        "include/tables/silver/a.py: no check understands its values (AttributeError: no such thing): see "
        "docs/guides/declare-a-table.md"
    ]
