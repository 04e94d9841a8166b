"""OpenLineage: each batch is one event, in a file or at a real receiver."""

import json
import time

import pytest

from include.catalog import Catalog
from include.errors import Unreachable
from include.lake import locations
from include.monitoring import lineage
from include.settings import settings
from include.spec import Delta, Flow, Kafka, Table
from tests.support import lake
from tests.support.lake import delta_offset
from tests.support.receiver import Receiver

BRONZE = Flow(name="bronze.events", source=Kafka(("clicks", "views")), comment="as it came")
SILVER = Flow(name="silver.readings", source=Delta("bronze.events"), comment="typed", owner="team-x")
TABLES = Catalog({BRONZE.name: BRONZE, SILVER.name: SILVER})


@pytest.fixture(autouse=True)
def no_receiver(home, monkeypatch, own_settings):
    monkeypatch.delenv("OPENLINEAGE_URL", raising=False)
    own_settings()


@pytest.fixture
def receiver():
    server = Receiver()
    yield server
    server.stop()


def commit(flow: Table, batch: int, end_offset: object, generation: int = 1) -> int:
    metadata = {"flow": flow.flow, "generation": generation, "batch": batch, "source_to": end_offset}
    return lake.rows(flow.name, time.time(), 5, **metadata)


def events() -> list[dict]:
    return [json.loads(line) for line in (settings().home / "lineage" / "events.ndjson").read_text().splitlines()]


def test_an_event_has_the_declaration_and_the_batch():
    commit(BRONZE, 3, {"clicks": {"0": 4}, "views": {"0": 1}})
    commit(SILVER, 7, delta_offset(1))
    assert lineage.emit_events(TABLES) == {BRONZE.flow: "1/3", SILVER.flow: "1/7"}
    bronze, silver = events()
    assert [(dataset["namespace"], dataset["name"]) for dataset in bronze["inputs"]] == [
        (f"kafka://{settings().kafka}", "clicks"),
        (f"kafka://{settings().kafka}", "views"),
    ]
    assert (silver["eventType"], silver["job"]["namespace"], silver["job"]["name"]) == (
        "COMPLETE",
        "sluice",
        SILVER.flow,
    )
    assert silver["job"]["facets"]["ownership"]["owners"][0]["name"] == "team-x"
    [input_dataset], [output_dataset] = silver["inputs"], silver["outputs"]
    assert (input_dataset["namespace"], input_dataset["name"]) == ("file", str(locations.table_path(BRONZE.name)))
    assert input_dataset["facets"]["version"]["datasetVersion"] == "0"
    facets = output_dataset["facets"]
    assert facets["version"]["datasetVersion"] == "0"
    assert facets["documentation"]["description"] == "typed"
    assert facets["ownership"]["owners"][0]["name"] == "team-x"
    assert facets["symlinks"]["identifiers"][0]["name"] == SILVER.name
    [column] = facets["schema"]["fields"]
    assert (column["name"], column["type"], column["description"]) == ("number", "long", "how many")
    assert bronze["outputs"][0]["name"] == input_dataset["name"], "what one writes is what the other reads"


def test_a_batch_is_told_once_and_the_next_one_again():
    commit(SILVER, 1, None)
    assert lineage.emit_events(TABLES) == {SILVER.flow: "1/1"}
    assert lineage.emit_events(TABLES) == {}
    lake.write(SILVER.name, time.time(), lake.data("compacted", 5, time.time(), dataChange=False))
    assert lineage.emit_events(TABLES) == {}, "somebody else's commit is no batch"
    commit(SILVER, 2, None)
    commit(SILVER, 1, None, generation=2)
    assert lineage.emit_events(TABLES) == {SILVER.flow: "2/1"}
    assert len({event["run"]["runId"] for event in events()}) == 2
    (settings().home / "lineage" / "told.json").unlink()
    lineage.emit_events(TABLES)
    assert events()[-1] == events()[-2], "a receiver that is told twice can see that it was"


def test_a_receiver_gets_the_events_and_is_told_again_of_what_it_did_not_take(receiver, monkeypatch):
    monkeypatch.setenv("OPENLINEAGE_URL", f"http://127.0.0.1:{receiver.port}")
    monkeypatch.setenv("OPENLINEAGE_API_KEY", "secret-of-a-test")
    settings.cache_clear()
    commit(SILVER, 1, None)
    receiver.status = 503
    with pytest.raises(Unreachable, match="OPENLINEAGE_URL is http://127.0.0.1:.*, which takes no event") as refusal:
        lineage.emit_events(TABLES)
    assert "secret-of-a-test" not in str(refusal.value)
    assert receiver.messages == []
    receiver.status = 200
    assert lineage.emit_events(TABLES) == {SILVER.flow: "1/1"}
    assert lineage.emit_events(TABLES) == {}
    [event] = receiver.messages
    assert event["job"]["name"] == SILVER.flow
    assert receiver.headers["Authorization"] == "Bearer secret-of-a-test"
    assert not (settings().home / "lineage" / "events.ndjson").exists()


def test_a_receiver_that_is_away_is_named_and_waited_for_not_long(receiver):
    commit(SILVER, 1, None)
    url = f"http://127.0.0.1:{receiver.port}"
    receiver.stop()
    started_at = time.monotonic()
    with pytest.raises(Unreachable, match="start that receiver"):
        lineage.emit_events(TABLES, url)
    assert time.monotonic() - started_at < 5
    receiver.start()
    assert lineage.emit_events(TABLES, url) == {SILVER.flow: "1/1"}


def test_a_damaged_table_is_named_and_leaves_the_others_alone():
    other_table = Flow(name="bronze.other", source=Kafka("other"), comment="")
    commit(BRONZE, 1, None)
    commit(other_table, 1, None)
    log = locations.table_path(BRONZE.name) / "_delta_log"
    (log / f"{0:020}.json").write_text('{"commitInfo": ')
    results = lineage.emit_events(Catalog({BRONZE.name: BRONZE, other_table.name: other_table}))
    assert results[BRONZE.flow].startswith("cannot be sent: ")
    assert results[other_table.flow] == "1/1"


def test_the_file_does_not_grow_without_end(monkeypatch):
    monkeypatch.setattr(lineage, "LINEAGE_BYTES", 10)
    for batch in range(3):
        commit(SILVER, batch, None)
        lineage.emit_events(TABLES)
    assert len(events()) == 1
    assert (settings().home / "lineage" / "events.1.ndjson").exists()
