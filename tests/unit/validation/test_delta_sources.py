"""How tables read each other: through temporary steps, by their change feeds, from some version or moment on."""

from pathlib import Path

import pytest

from include.catalog import Catalog
from include.engine.checkpoints.definition import fingerprint
from include.errors import FlowBroken, Unreachable, UsageError
from include.maintenance import vacuum_guard
from include.readers import starting_version
from include.settings import settings
from include.spec import Delta, Kafka, Table
from include.validation.delta_sources import CHANGE_FEED_PROPERTY, inline_steps
from tests.support.delta_log import added, commit, commit_info

DAY = 86_400


@pytest.fixture
def source(tmp_path: Path, monkeypatch) -> Path:
    """Where the table `bronze.events` of the test's own home lies."""
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    settings.cache_clear()
    yield settings().table_path("bronze.events")
    monkeypatch.undo()
    settings.cache_clear()


def table(name: str, source: Delta | Kafka, **more) -> Table:
    return Table(name=name, comment="", source=source, schema="key BINARY", **more)


def graph(*tables: Table) -> tuple[dict[str, Table], dict[str, Table]]:
    return inline_steps({one.name: one for one in tables})


EVENTS = table("bronze.events", Kafka("events"))
STEP = table("silver.step", Delta("bronze.events", max_files=7), temporary=True, transform="SELECT key FROM source")
FURTHER = table("silver.further", Delta("silver.step"), temporary=True)
READER = table("gold.reader", Delta("silver.further"))


def test_a_table_reads_the_stored_source_of_its_temporary_steps_and_does_them_in_order():
    stored, steps = graph(EVENTS, STEP, FURTHER, READER)
    assert list(stored) == ["bronze.events", "gold.reader"]
    assert list(steps) == ["silver.step", "silver.further"]
    assert stored["gold.reader"].source == Delta("bronze.events", max_files=7)
    assert [step.name for step in stored["gold.reader"].steps] == ["silver.step", "silver.further"]
    assert all(not step.steps for step in stored["gold.reader"].steps)
    assert [step.name for step in steps["silver.further"].steps] == ["silver.step"]


def test_a_temporary_step_has_no_flow_and_its_reader_keeps_the_files_of_the_stored_source():
    tables = Catalog(*graph(EVENTS, STEP, FURTHER, READER))
    assert [flow.name for flow in tables.drivers()["main"]] == ["bronze.events", "gold.reader"]
    assert list(vacuum_guard.readers(tables, "bronze.events")) == ["gold.reader"]
    with pytest.raises(UsageError, match="'silver.step' is a temporary step and has no flow"):
        tables.flow("silver.step")


def test_a_new_definition_of_a_temporary_step_is_one_of_its_readers():
    def made(transform: str) -> str:
        step = table("silver.step", Delta("bronze.events"), temporary=True, transform=transform)
        stored, _ = graph(EVENTS, step, table("gold.reader", Delta("silver.step")))
        return fingerprint(stored["gold.reader"])

    assert made("SELECT key FROM source") == made("SELECT key FROM source")
    assert made("SELECT key FROM source") != made("SELECT upper(key) AS key FROM source")


def test_a_table_whose_changes_are_read_keeps_its_change_feed():
    stored, _ = graph(EVENTS, table("silver.a", Delta("bronze.events")), table("gold.a", Delta("silver.a", True)))
    assert [name for name, one in stored.items() if one.properties.get(CHANGE_FEED_PROPERTY) == "true"] == ["silver.a"]


def committed(source: Path, *moments: float, first: int = 0) -> None:
    """Versions that were committed so many seconds after 1970."""
    for version, at in enumerate(moments, start=first):
        commit(source, version, commit_info(at), added(f"{version}"))


BEGINNINGS = [
    (Delta("bronze.events"), None),
    (Delta("bronze.events", since_version=0), 0),
    (Delta("bronze.events", since_version=2), 2),
    (Delta("bronze.events", since="1970-01-01T00:00:00Z"), 0),
    (Delta("bronze.events", since="1970-01-02T00:00:00Z"), 1),
    (Delta("bronze.events", since="1970-01-02T00:00:00+01:00"), 1),
    (Delta("bronze.events", since="1970-01-02T00:00:01Z"), 2),
]


@pytest.mark.parametrize(("asked", "version"), BEGINNINGS)
def test_a_flow_begins_with_the_first_version_of_the_moment_or_later(source: Path, asked: Delta, version: int | None):
    committed(source, 0.5 * DAY, DAY, 2 * DAY)
    assert starting_version.first_version("silver.reader", asked) == version


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
    committed(source, 0.5 * DAY, DAY, 2 * DAY)
    with pytest.raises(Unreachable) as refusal:
        starting_version.first_version("silver.reader", asked)
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
    committed(source, DAY, 2 * DAY, first=5)
    with pytest.raises(FlowBroken) as refusal:
        starting_version.first_version("silver.reader", asked)
    assert str(refusal.value) == (
        f"silver.reader begins with {what} of bronze.events, whose log begins with version 5 of "
        f"1970-01-02T00:00:00+00:00: begin later, or with all that it holds"
    )
    later = Delta("bronze.events", since="1970-01-02T00:00:01Z")
    assert starting_version.first_version("silver.reader", later) == 6
