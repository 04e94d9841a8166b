"""The lag of a flow, in every unit: for handmade commits and checkpoints, and on a real broker."""

import json
import os
import time
from dataclasses import replace

import pyarrow
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable, write_deltalake

from include.delta import backlog
from include.flows import sources
from include.flows.lag import Lag
from include.lake import locations
from include.monitoring import lag
from include.settings import settings
from include.spec import Delta, Files, Flow, Kafka, Table
from tests.support import lake
from tests.support.lake import checkpoint, delta_offset
from tests.support.topic import Topic
from tests.support.waiting import wait_until

SOURCE = "bronze.events"
READER = Flow(name="silver.readings", source=Delta(SOURCE), comment="")


pytestmark = pytest.mark.usefixtures("home")


def measure_lag(flow: Table) -> Lag:
    return lag.measure([flow])[flow.flow]


def test_a_flow_that_stands_within_a_version_lacks_its_later_files_and_every_later_version():
    current_time = time.time()
    lake.rows(SOURCE, current_time - 300, 1, 2, 4)
    lake.rows(SOURCE, current_time - 200, 8, 16)
    lake.rows(SOURCE, current_time - 100, 32)
    checkpoint(READER.flow, delta_offset(0, 0))
    flow_lag = measure_lag(READER)
    assert (flow_lag.count, flow_lag.versions, flow_lag.files, flow_lag.bytes, flow_lag.rows) == (
        2,
        2,
        5,
        500,
        2 + 4 + 8 + 16 + 32,
    )
    assert flow_lag.seconds == pytest.approx(300, abs=5)
    assert flow_lag.words == "2 versions"
    checkpoint(READER.flow, delta_offset(0, 0), delta_offset(2, -1))
    flow_lag = measure_lag(READER)
    assert (flow_lag.versions, flow_lag.files, flow_lag.rows) == (1, 1, 32)
    assert flow_lag.seconds == pytest.approx(100, abs=5)
    assert not flow_lag.is_up_to_date


def test_a_batch_that_is_planned_and_not_committed_is_still_unread():
    lake.rows(SOURCE, time.time(), 1, 2)
    lake.rows(SOURCE, time.time(), 4)
    checkpoint(READER.flow, delta_offset(1), delta_offset(2), is_planned=True)
    assert (measure_lag(READER).rows, measure_lag(READER).versions) == (4, 1)


def test_a_version_that_only_compacts_or_is_empty_leaves_a_reader_up_to_date():
    current_time = time.time()
    lake.rows(SOURCE, current_time - 500, 1)
    lake.write(SOURCE, current_time - 400, lake.data("compacted", 1, current_time, dataChange=False))
    lake.rows(SOURCE, current_time - 300)
    checkpoint(READER.flow, delta_offset(1))
    flow_lag = measure_lag(READER)
    assert (flow_lag.versions, flow_lag.files, flow_lag.rows, flow_lag.seconds) == (2, 0, 0, 0)
    assert flow_lag.is_up_to_date


def test_a_flow_within_its_first_version_lacks_the_rest_of_that_versions_files_by_age_and_name():
    path = locations.table_path(SOURCE)
    for count in (1, 2, 4, 8):
        write_deltalake(str(path), pyarrow.table({"number": range(count)}), mode="append")
    assert len({file.stat().st_mtime for file in path.glob("*.parquet")}) == 4, (
        "the order of the files is told by their dates"
    )
    checkpoint(READER.flow, delta_offset(2, 0, is_first=True))
    flow_lag = measure_lag(READER)
    assert (flow_lag.versions, flow_lag.files, flow_lag.rows) == (1, 3, 2 + 4 + 8)
    checkpoint(READER.flow, delta_offset(3, 1, is_first=True))
    flow_lag = measure_lag(READER)
    assert (flow_lag.versions, flow_lag.files, flow_lag.rows, flow_lag.words) == (0, 2, 12, "2 files")
    assert not flow_lag.is_up_to_date


def test_a_flow_that_has_read_nothing_lacks_all_that_its_source_holds():
    current_time = time.time()
    lake.rows(SOURCE, current_time - 900, 1, 2)
    lake.rows(SOURCE, current_time - 600, 4)
    flow_lag = measure_lag(READER)
    assert (flow_lag.versions, flow_lag.files, flow_lag.rows, flow_lag.words) == (2, 3, 7, "nothing read yet")
    assert flow_lag.seconds == pytest.approx(900, abs=5)
    from_version_1 = replace(READER, source=Delta(SOURCE, since_version=1))
    assert (measure_lag(from_version_1).versions, measure_lag(from_version_1).rows) == (1, 4)


def test_a_reader_of_the_change_feed_lacks_its_files_or_where_there_are_none_those_of_the_table():
    current_time = time.time()
    change_reader = replace(READER, source=Delta(SOURCE, changes=True))
    lake.rows(SOURCE, current_time - 500, 1)
    cdc = {"cdc": {"path": "_change_data/c", "partitionValues": {}, "size": 70, "dataChange": False}}
    lake.write(SOURCE, current_time - 400, lake.data("merged", 5, current_time), cdc)
    lake.rows(SOURCE, current_time - 300, 8)
    checkpoint(change_reader.flow, delta_offset(1))
    flow_lag = measure_lag(change_reader)
    assert (flow_lag.files, flow_lag.bytes, flow_lag.rows) == (2, 170, None)
    checkpoint(change_reader.flow, delta_offset(2))
    assert measure_lag(change_reader).rows == 8


def test_a_flow_that_is_far_behind_is_told_by_its_first_commits_and_that_there_is_more(monkeypatch):
    monkeypatch.setattr(backlog, "MOST_COMMITS", 3)
    for _ in range(5):
        lake.rows(SOURCE, time.time(), 1)
    checkpoint(READER.flow, delta_offset(1))
    flow_lag = measure_lag(READER)
    assert (flow_lag.versions, flow_lag.rows, flow_lag.is_more) == (4, 3, True)
    checkpoint(READER.flow, delta_offset(2))
    assert (measure_lag(READER).rows, measure_lag(READER).is_more) == (3, False)


def test_what_cannot_be_told_is_said_in_a_sentence_and_keeps_nothing_else_from_being_told():
    path = locations.table_path(SOURCE)
    assert measure_lag(READER).unknown == f"{path} holds no Delta log: start the flow that writes the table first"
    for _ in range(4):
        lake.rows(SOURCE, time.time(), 1)
    checkpoint(READER.flow, delta_offset(1))
    (path / "_delta_log" / f"{2:020}.json").unlink()
    assert "lacks commits from version 1 on" in measure_lag(READER).unknown
    checkpoint(READER.flow, delta_offset(9))
    assert "ends at version 3, before 9" in measure_lag(READER).unknown
    (locations.checkpoints(READER.flow) / "1" / "offsets" / "0").write_text("")
    damaged_flow, other_flow = READER, replace(READER, name="gold.other")
    checkpoint(other_flow.flow, delta_offset(3))
    lags = lag.measure([damaged_flow, other_flow])
    assert "cut short" in lags[damaged_flow.flow].unknown
    assert lags[other_flow.flow].rows == 1


def test_files_that_wait_are_counted_with_their_bytes_and_the_age_of_the_oldest(tmp_path):
    bills = Flow(name="bronze.bills", source=Files(str(tmp_path / "bills"), format="csv"), comment="")
    (tmp_path / "bills").mkdir()
    for name, age in (("a.csv", 900), ("b.csv", 600), ("c.csv", 300)):
        file = tmp_path / "bills" / name
        file.write_text("12345")
        os.utime(file, (time.time() - age, time.time() - age))
    flow_lag = measure_lag(bills)
    assert (flow_lag.count, flow_lag.files, flow_lag.bytes, flow_lag.words) == (3, 3, 15, "nothing read yet")
    log = checkpoint(bills.flow, {"logOffset": 0}) / "sources" / "0"
    log.mkdir(parents=True)
    log_entry = {"path": f"file://{tmp_path}/bills/a.csv", "timestamp": 1, "batchId": 0}
    (log / "0").write_text(f"v1\n{json.dumps(log_entry)}")
    flow_lag = measure_lag(bills)
    assert (flow_lag.count, flow_lag.bytes, flow_lag.rows, flow_lag.words) == (2, 10, None, "2 files")
    assert flow_lag.seconds == pytest.approx(600, abs=5)


def test_kafka_flows_lack_offsets_of_each_partition_and_know_when_the_first_unread_record_goes(broker):
    topic = Topic(broker).create(partitions=2, retention_ms=7_200_000).send(*range(7))
    flow = Flow(name="bronze.events", source=Kafka(topic.name), comment="")
    flow_lag = measure_lag(flow)
    assert (flow_lag.count, flow_lag.offsets, flow_lag.words) == (7, {topic.name: {0: 4, 1: 3}}, "nothing read yet")
    checkpoint(flow.flow, {topic.name: {"0": 4, "1": 1}})
    flow_lag = measure_lag(flow)
    assert (flow_lag.count, flow_lag.offsets, flow_lag.words) == (2, {topic.name: {0: 0, 1: 2}}, "2 records")
    assert 0 <= flow_lag.seconds < 60
    assert 1.9 < flow_lag.hours_until_loss <= 2
    assert (flow_lag.versions, flow_lag.rows) == (None, None)
    checkpoint(flow.flow, {topic.name: {"0": 4, "1": 3}})
    assert measure_lag(flow).is_up_to_date
    assert (measure_lag(flow).seconds, measure_lag(flow).hours_until_loss) == (0, None)


def end_of(source: Kafka) -> dict:
    return sources.of(Flow(name="bronze.events", source=source, comment="")).end()


def test_records_of_an_open_transaction_are_not_unread_and_no_end_of_the_source(broker):
    topic = Topic(broker).create(partitions=2).send(*range(4))
    flow = Flow(name="bronze.events", source=Kafka(topic.name), comment="")
    producer = Producer({"bootstrap.servers": broker, "transactional.id": topic.name})
    producer.init_transactions()
    producer.begin_transaction()
    for number in range(6):
        producer.produce(topic.name, str(number), partition=0)
    producer.flush()
    checkpoint(flow.flow, {topic.name: {"0": 2, "1": 2}})
    assert sources.of(flow).end() == {topic.name: {"0": 2, "1": 2}}
    assert measure_lag(flow).is_up_to_date
    producer.commit_transaction()
    # Its six records and its mark.
    wait_until(lambda: measure_lag(flow).count == 7, 30)
    assert end_of(Kafka(pattern=f"{topic.name}|none")) == {topic.name: {"0": 9, "1": 2}}
    assert not sources.of(flow).has_reached(sources.of(flow).end())
    checkpoint(flow.flow, {topic.name: {"0": 9, "1": 2}})
    assert sources.of(flow).has_reached(sources.of(flow).end())


def test_a_topic_without_records_has_no_end(broker):
    topic = Topic(broker).create()
    assert end_of(Kafka(topic.name)) == {} == end_of(Kafka((topic.name, "nobody-made-it")))


def test_records_that_are_dated_back_are_as_old_as_they_say(broker):
    topic = Topic(broker).create()
    flow = Flow(name="bronze.events", source=Kafka(pattern=f"{topic.name}|none"), comment="")
    topic.send_at(time.time() - 5_000, "a")
    topic.send_at(time.time() - 1_000, "b")
    assert measure_lag(flow).seconds == pytest.approx(5_000, abs=10)
    checkpoint(flow.flow, {topic.name: {"0": 1}})
    assert measure_lag(flow).seconds == pytest.approx(1_000, abs=10)


def test_a_topic_that_is_gone_is_named_and_leaves_other_flows_alone(broker):
    topic = Topic(broker).create().send("a")
    existing = Flow(name="bronze.there", source=Kafka(topic.name), comment="")
    missing = Flow(name="bronze.gone", source=Kafka("nobody-made-it"), comment="")
    lags = lag.measure([missing, existing])
    assert lags["bronze.gone"].unknown.startswith("topic 'nobody-made-it' does not exist on ")
    assert lags["bronze.gone"].words == "unknown: no topic"
    assert lags["bronze.there"].count == 1


def test_a_broker_that_hangs_costs_all_flows_together_one_timeout(silent_port, monkeypatch):
    monkeypatch.setenv("SLUICE_KAFKA", f"127.0.0.1:{silent_port}")
    settings.cache_clear()
    flows = [Flow(name=f"bronze.b{number}", source=Kafka(f"t{number}"), comment="") for number in range(10)]
    started_at = time.monotonic()
    lags = lag.measure(flows, timeout_seconds=1)
    assert time.monotonic() - started_at < 3
    assert {flow_lag.words for flow_lag in lags.values()} == {"unknown: no broker"}
    assert all(flow_lag.is_away for flow_lag in lags.values())


def test_reading_the_log_with_delta_rs_and_by_its_commits_comes_to_the_same():
    path = locations.table_path(SOURCE)
    for count in (3, 5):
        write_deltalake(str(path), pyarrow.table({"number": range(count)}), mode="append")
    DeltaTable(path).optimize.compact()
    write_deltalake(str(path), pyarrow.table({"number": range(7)}), mode="append")
    checkpoint(READER.flow, delta_offset(1))
    assert (measure_lag(READER).rows, measure_lag(READER).files, measure_lag(READER).versions) == (12, 2, 3)
