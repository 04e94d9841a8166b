"""How tables read each other: through temporary steps, by their change feeds, from some version or moment on."""

from pathlib import Path

import pytest

from include.catalog import Catalog
from include.delta import versions
from include.engine.checkpoints.definition import fingerprint
from include.errors import FlowBroken, Unreachable, UsageError
from include.lake import locations
from include.maintenance import vacuum_guard
from include.project.sources import CHANGE_FEED_PROPERTY, inline_steps
from include.settings import settings
from include.spec import Delta, Kafka, Table
from tests.support.delta_log import added, commit, commit_info

DAY = 86_400


@pytest.fixture
def source(tmp_path: Path, monkeypatch) -> Path:
    """The path of `bronze.events` in the home directory of one test."""
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    settings.cache_clear()
    yield locations.table_path("bronze.events")
    monkeypatch.undo()
    settings.cache_clear()


def table(name: str, source: Delta | Kafka, **fields) -> Table:
    return Table(name=name, comment="", source=source, schema="key BINARY", **fields)


def graph(*tables: Table) -> tuple[dict[str, Table], dict[str, Table]]:
    return inline_steps({declaration.name: declaration for declaration in tables})


EVENTS = table("bronze.events", Kafka("events"))
STEP = table("silver.step", Delta("bronze.events", max_files=7), temporary=True, transform="SELECT key FROM source")
SECOND_STEP = table("silver.further", Delta("silver.step"), temporary=True)
READER = table("gold.reader", Delta("silver.further"))


def test_a_table_reads_the_stored_source_of_its_temporary_steps_and_does_them_in_order():
    stored_tables, steps = graph(EVENTS, STEP, SECOND_STEP, READER)
    assert list(stored_tables) == ["bronze.events", "gold.reader"]
    assert list(steps) == ["silver.step", "silver.further"]
    assert stored_tables["gold.reader"].source == Delta("bronze.events", max_files=7)
    assert [step.name for step in stored_tables["gold.reader"].steps] == ["silver.step", "silver.further"]
    assert all(not step.steps for step in stored_tables["gold.reader"].steps)
    assert [step.name for step in steps["silver.further"].steps] == ["silver.step"]


def test_a_temporary_step_has_no_flow_and_its_reader_keeps_the_files_of_the_stored_source():
    tables = Catalog(*graph(EVENTS, STEP, SECOND_STEP, READER))
    assert [flow.name for flow in tables.drivers()["main"]] == ["bronze.events", "gold.reader"]
    assert list(vacuum_guard.readers(tables, "bronze.events")) == ["gold.reader"]
    with pytest.raises(UsageError, match="'silver.step' is a temporary step and has no flow"):
        tables.flow("silver.step")


def test_a_new_definition_of_a_temporary_step_is_one_of_its_readers():
    def reader_fingerprint(transform: str) -> str:
        step = table("silver.step", Delta("bronze.events"), temporary=True, transform=transform)
        stored_tables, _ = graph(EVENTS, step, table("gold.reader", Delta("silver.step")))
        return fingerprint(stored_tables["gold.reader"])

    assert reader_fingerprint("SELECT key FROM source") == reader_fingerprint("SELECT key FROM source")
    assert reader_fingerprint("SELECT key FROM source") != reader_fingerprint("SELECT upper(key) AS key FROM source")


def test_a_table_whose_changes_are_read_keeps_its_change_feed():
    stored_tables, _ = graph(
        EVENTS, table("silver.a", Delta("bronze.events")), table("gold.a", Delta("silver.a", True))
    )
    assert [
        name
        for name, declaration in stored_tables.items()
        if declaration.properties.get(CHANGE_FEED_PROPERTY) == "true"
    ] == ["silver.a"]


def commit_versions(source: Path, *seconds: float, first: int = 0) -> None:
    """Commit versions at these numbers of seconds after 1970."""
    for version, second in enumerate(seconds, start=first):
        commit(source, version, commit_info(second), added(f"{version}"))


START_VERSIONS = [
    (Delta("bronze.events"), None),
    (Delta("bronze.events", since_version=0), 0),
    (Delta("bronze.events", since_version=2), 2),
    (Delta("bronze.events", since="1970-01-01T00:00:00Z"), 0),
    (Delta("bronze.events", since="1970-01-02T00:00:00Z"), 1),
    (Delta("bronze.events", since="1970-01-02T00:00:00+01:00"), 1),
    (Delta("bronze.events", since="1970-01-02T00:00:01Z"), 2),
]


@pytest.mark.parametrize(("asked", "version"), START_VERSIONS)
def test_a_flow_begins_with_the_first_version_of_the_moment_or_later(source: Path, asked: Delta, version: int | None):
    commit_versions(source, 0.5 * DAY, DAY, 2 * DAY)
    assert versions.first_version("silver.reader", asked) == version


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (
            Delta("bronze.events", since_version=3),
            "silver.reader begins with version 3 of bronze.events, which has come to 2: wait, or lower since_version",
        ),
        (
            Delta("bronze.events", since="1970-01-04T00:00:00Z"),
            "silver.reader begins with what bronze.events holds since 1970-01-04T00:00:00Z, and nothing was committed "
            "there since: wait",
        ),
    ],
)
def test_a_flow_waits_for_a_beginning_that_is_still_to_come(source: Path, asked: Delta, sentence: str):
    commit_versions(source, 0.5 * DAY, DAY, 2 * DAY)
    with pytest.raises(Unreachable) as refusal:
        versions.first_version("silver.reader", asked)
    assert str(refusal.value) == sentence


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        (Delta("bronze.events", since_version=3), "version 3"),
        (Delta("bronze.events", since="1970-01-01T00:00:00Z"), "1970-01-01T00:00:00Z"),
    ],
)
def test_a_beginning_that_the_log_no_longer_holds_is_refused_instead_of_passed_over(
    source: Path, asked: Delta, what: str
):
    commit_versions(source, DAY, 2 * DAY, first=5)
    with pytest.raises(FlowBroken) as refusal:
        versions.first_version("silver.reader", asked)
    assert str(refusal.value) == (
        f"silver.reader begins with {what} of bronze.events, whose log begins with version 5 of "
        f"1970-01-02T00:00:00+00:00: begin later, or with all that it holds"
    )
    later_start = Delta("bronze.events", since="1970-01-02T00:00:01Z")
    assert versions.first_version("silver.reader", later_start) == 6
