"""Kafka records that no row of Delta can hold, and batches that are left out by approval."""

import json
import time

import pytest
from confluent_kafka import Producer

from include.control import commands
from include.control.commands import Action, Command
from include.control.store import database
from include.delta import stored_table
from include.errors import FlowBroken
from include.lake import locations
from include.ledger import verify
from include.monitoring import lag
from include.recovery import reset
from include.rules import FAILED
from include.settings import settings
from include.spec import KAFKA_SCHEMA_WITH_IDS, Delta, Flow, Kafka, Table
from tests.support import raw_headers
from tests.support.flows import only_in_full_runs, rows_of
from tests.support.topic import Topic

NOW_MS = int(time.time() * 1000)
# As if they were milliseconds, these lie in the years 55,000 and 54 million, and the second one has no microseconds.
MICROS, NANOS = NOW_MS * 1_000, NOW_MS * 1_000_000


@pytest.fixture
def topic(broker: str) -> Topic:
    return Topic(broker)


def send_at(topic: Topic, *milliseconds: int) -> None:
    producer = Producer({"bootstrap.servers": topic.servers, "log_level": 0})
    errors = []
    for number, at in enumerate(milliseconds):
        place = {"partition": number % topic.partitions, "timestamp": at}
        producer.produce(topic.name, str(at).encode(), on_delivery=lambda error, _: errors.append(error), **place)
    assert producer.flush(60) == 0
    assert set(errors) == {None}


@pytest.mark.parametrize(
    "fast_path", [True, pytest.param(False, marks=only_in_full_runs)], ids=["the fast path", "Spark's writers"]
)
def test_a_record_with_a_time_that_delta_cannot_hold_is_quarantined_with_its_place(
    topic, run_once, name, monkeypatch, fast_path: bool
):
    monkeypatch.setattr("include.engine.fast_path.path.suits", lambda table: fast_path)
    unlimited = str(2**63 - 1)
    topic.create(
        2, message_timestamp_after_max_ms=unlimited, message_timestamp_before_max_ms=unlimited, retention_ms="-1"
    )
    send_at(topic, NOW_MS, NANOS, 0, MICROS, NOW_MS, NOW_MS)
    bronze = Flow(name=f"bronze.{name}", comment="", source=Kafka(topic.name))
    parsed = Flow(
        name=f"silver.{name}",
        comment="",
        source=Kafka(topic.name),
        schema="partition INT, offset BIGINT, timestamp TIMESTAMP",
        transform="SELECT partition, offset, timestamp FROM source",
    )
    run_once(bronze, parsed)
    send_at(topic, NOW_MS)
    run_once(bronze, parsed)
    for table in (bronze, parsed):
        stored = sorted((row["partition"], row["offset"]) for row in rows_of(table.name))
        assert stored == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 2)]
        assert "every row accounted for" in verify.lines(verify.verify(table))[0]
    failed = {json.loads(row["_failed_record"])["offset"]: row for row in rows_of(bronze.quarantine)}
    assert [failed[offset]["_rules"] for offset in (0, 1)] == [[FAILED]] * 2
    assert "long overflow" in failed[0]["_failed_reason"]
    assert "not within the years 1 to 9999" in failed[1]["_failed_reason"]
    record = json.loads(failed[0]["_failed_record"])
    assert (record["topic"], record["partition"], record["timestamp_ms"]) == (topic.name, 1, NANOS)


def test_a_record_with_a_header_whose_name_is_no_text_is_quarantined_and_no_name_is_cut_off(topic, run_once, name):
    topic.create()
    names = [[], [b"n\0x", "ü".encode()], [b"ok", b"\xff"], [b""], ["größe".encode("latin-1")]]
    bronze = Flow(name=f"bronze.{name}", comment="", source=Kafka(topic.name))
    with_ids = Flow(
        name=f"bronze.{name}_ids",
        comment="",
        source=Kafka(topic.name, schema_ids=True),
        schema=KAFKA_SCHEMA_WITH_IDS,
    )
    for _ in range(2):
        raw_headers.send(topic.servers, topic.name, *names)
        run_once(bronze, with_ids)
    # A batch without such a record, after those with one.
    raw_headers.send(topic.servers, topic.name, [b"n\0x"])
    run_once(bronze, with_ids)
    for table in (bronze, with_ids):
        rows = sorted(rows_of(table.name), key=lambda row: row["offset"])
        stored = [(row["offset"], [header["key"] for header in row["headers"] or []]) for row in rows]
        good = [(0, []), (1, ["n\0x", "ü"]), (3, [""])]
        assert stored == [*good, *[(offset + 5, keys) for offset, keys in good], (10, ["n\0x"])]
        quarantined = sorted((row["offset"], row["value"], row["_rules"]) for row in rows_of(table.quarantine))
        rule = ["names of headers in UTF-8"]
        assert quarantined == [(2, b"2", rule), (4, b"4", rule), (7, b"2", rule), (9, b"4", rule)]
        assert "every row accounted for" in verify.lines(verify.verify(table))[0]
    assert lag.measure([bronze])[bronze.flow].is_up_to_date


def test_a_batch_that_cannot_go_on_is_left_out_by_approval_and_verify_counts_it(topic, run_once, name):
    topic.create().send(*range(5))
    bronze = Flow(name=f"bronze.{name}", comment="", source=Kafka(topic.name))
    silver = Flow(
        name=f"silver.{name}",
        comment="",
        source=Kafka(topic.name),
        schema="number INT, partition INT, offset BIGINT",
        transform="SELECT CAST(CAST(value AS STRING) AS INT) AS number, partition, offset FROM source",
    )
    run_once(bronze)
    topic.send("a", "b")
    run_once(bronze)
    reader = Flow(
        name=f"gold.{name}",
        comment="",
        source=Delta(bronze.name, max_files=1),
        schema="total BIGINT",
        transform="SELECT CAST(CAST(value AS STRING) AS INT) + 1 / (offset - offset) AS total FROM source",
    )
    with pytest.raises(FlowBroken, match="action skip"):
        run_once(reader)
    assert rows_of(reader.name) == []
    leave_out(reader)
    with pytest.raises(FlowBroken, match="every row of batch 1"):
        run_once(reader)
    leave_out(reader)
    run_once(reader)
    notes = verify.verify(reader).notes
    assert [f"{reader.name} 1/{batch} was skipped" in note for batch, note in enumerate(notes)] == [True, True]
    assert "asked for by ann, poison" in notes[0]
    assert [row["number"] for row in stored_rows(run_once, silver)] == [0, 1, 2, 3, 4]
    assert [row["offset"] for row in rows_of(silver.quarantine)] == [5, 6]


def test_records_that_a_raw_table_cannot_hold_are_quarantined_and_a_skipped_batch_of_a_topic_counts_its_offsets(
    spark, topic, run_once, name
):
    topic.create().send(*range(3))
    bronze = Flow(name=f"bronze.{name}", comment="", source=Kafka(topic.name))
    run_once(bronze)
    path = locations.table_path(bronze.name)
    spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT other CHECK (offset <> 3)")
    topic.send("a", "b", "c")
    run_once(bronze)
    assert sorted(row["offset"] for row in rows_of(bronze.name)) == [0, 1, 2, 4, 5]
    assert [(row["offset"], row["_rules"]) for row in rows_of(bronze.quarantine)] == [(3, ["constraint other"])]
    assert "every row accounted for" in verify.lines(verify.verify(bronze))[0]
    # It cannot be written: no row of it can be checked.
    spark.sql(
        f"ALTER TABLE delta.`{path}` ADD CONSTRAINT early CHECK (IF(offset < 6, true, raise_error('late') IS NULL))"
    )
    topic.send("a", "b")
    with pytest.raises(FlowBroken, match=f"{topic.name}/0 6 to 7 .action skip"):
        run_once(bronze)
    leave_out(bronze)
    topic.send()
    run_once(bronze)
    assert sorted(row["offset"] for row in rows_of(bronze.name)) == [0, 1, 2, 4, 5]
    assert f"was skipped (2 offsets, {topic.name}/0 6 to 7): asked for by ann" in verify.verify(bronze).notes[0]


def leave_out(table: Table) -> None:
    command = Command(Action.SKIP, (table.flow,), "ann", "poison", planned=reset.planned(table))
    (result,) = commands.execute(database.connect(settings().control_url), command)
    assert "leaves out batch" in result
    assert "left out already" in commands.execute(database.connect(settings().control_url), command)[0]


def stored_rows(run_once, table: Table) -> list[dict]:
    run_once(table)
    return sorted(stored_table.dataset(table.name).to_table().to_pylist(), key=lambda row: row["offset"])
