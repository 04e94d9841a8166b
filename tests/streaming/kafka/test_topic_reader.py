"""The topic reader reads the same records as Spark."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from include.checkpoints.offset_ranges import OffsetRange
from include.delta.delta_log import DeltaLog
from include.engine.fast_path import collect, data_file, topic_reader
from include.engine.fast_path.table_layout import NotSupported
from include.engine.fast_path.topic_reader import TopicReader
from include.engine.sources import kafka_reader
from include.kafka import broker
from include.kafka.cluster import Cluster
from include.lake import locations
from include.ledger import verify
from include.spec import Flow, Kafka, Table
from tests.support.flows import rows_of
from tests.support.topic import Topic
from tests.support.waiting import wait_until

COLUMNS = topic_reader.SCHEMA.names


@pytest.fixture
def topic(broker: str) -> Topic:
    return Topic(broker)


@pytest.fixture
def reader(broker: str) -> TopicReader:
    return TopicReader(Cluster(None, broker))


@pytest.fixture
def bronze(name: str, topic: Topic) -> Table:
    return Flow(name=f"bronze.{name}", comment="as it came", source=Kafka(topic.name))


def all_ranges(topic: Topic) -> list[OffsetRange]:
    offsets = broker.offsets(topic.cluster, topic.name)
    return [OffsetRange(topic.name, partition, first, after) for partition, (first, after) in sorted(offsets.items())]


def values(reader: TopicReader, ranges: list[OffsetRange]) -> list[bytes | None]:
    return [value for batch in reader.read(ranges) for value in batch["value"].to_pylist()]


@pytest.fixture
def send_awkward(topic: Topic) -> Callable[[], None]:
    """Sends records with and without keys and values to two partitions."""

    def send() -> None:
        producer = Producer({"bootstrap.servers": topic.servers, "log_level": 0})
        for number in range(5):
            for key, value in ((None, b"x"), (b"k", None), (b"", b"")):
                producer.produce(topic.name, value, key=key, partition=number % 2, timestamp=1_700_000_000_123)
        assert producer.flush(60) == 0

    return send


def test_records_are_read_as_spark_reads_them(spark, topic, reader, send_awkward):
    topic.create(2)
    send_awkward()
    records = kafka_reader.records_from(spark, Kafka(topic.name), {topic.name: {0: 0, 1: 0}})
    spark_records = records.select(*COLUMNS).toArrow()
    reader_records = pa.concat_tables(reader.read(all_ranges(topic))).cast(spark_records.schema)
    sort_order = [("partition", "ascending"), ("offset", "ascending")]
    assert len(reader_records) == 15
    assert reader_records.sort_by(sort_order).to_pylist() == spark_records.sort_by(sort_order).to_pylist()


def test_offsets_that_hold_no_record_are_stepped_over_also_the_last_ones(topic, reader):
    topic.create().send_in_transactions((False, (1, 2)), (True, (3, 4)), (False, (5, 6, 7)))
    (full_range,) = all_ranges(topic)
    assert full_range.after == 10
    assert values(reader, [full_range]) == [b"3", b"4"]
    # The transaction of these records was aborted.
    assert values(reader, [OffsetRange(topic.name, 0, 0, 2)]) == []


def test_only_the_records_of_the_batch_are_read_though_the_topic_goes_on(topic, reader):
    topic.create(2).send(*range(20))
    assert sorted(values(reader, [OffsetRange(topic.name, 0, 2, 4), OffsetRange(topic.name, 1, 9, 10)])) == [
        b"19",
        b"4",
        b"6",
    ]
    # The same connection then reads another partition, and earlier offsets.
    assert values(reader, [OffsetRange(topic.name, 1, 0, 1)]) == [b"1"]
    assert values(reader, [OffsetRange(topic.name, 0, 0, 1)]) == [b"0"]
    assert values(reader, []) == []


def test_what_the_broker_no_longer_holds_is_refused(topic, reader):
    topic.create().send(1, 2, 3).delete_before(2)
    with pytest.raises(NotSupported, match="Offset out of range"):
        values(reader, [OffsetRange(topic.name, 0, 0, 3)])
    assert values(reader, [OffsetRange(topic.name, 0, 2, 3)]) == [b"3"]


def test_the_end_of_a_partition_that_comes_too_early_is_no_end_of_the_batch(topic, reader, monkeypatch):
    # A new leader reports an early end until it knows the offsets of its followers.
    topic.create().send(1, 2)
    record_values = []
    with ThreadPoolExecutor() as pool:
        future = pool.submit(lambda: record_values.extend(values(reader, [OffsetRange(topic.name, 0, 0, 3)])))
        wait_until(lambda: record_values or reader._most_records > topic_reader.FIRST_RECORDS, 30)
        assert not future.done()
        topic.send(3)
        future.result(30)
    assert record_values == [b"1", b"2", b"3"]


def test_a_broker_that_is_away_is_refused(monkeypatch):
    monkeypatch.setattr(topic_reader, "SILENT_SECONDS", 1)
    with pytest.raises(NotSupported):
        values(TopicReader(Cluster(None, "127.0.0.1:1")), [OffsetRange("nowhere", 0, 0, 1)])


def test_a_large_batch_is_written_in_row_groups_with_the_statistics_of_all(
    run_once, bronze, topic, send_awkward, monkeypatch
):
    monkeypatch.setattr(topic_reader, "MOST_RECORDS", 4)
    monkeypatch.setattr(data_file, "ROW_GROUP_BYTES", 1)
    monkeypatch.setattr(collect, "MOST_ROWS", 3)
    topic.create(2)
    send_awkward()
    topic.send(*range(100))
    run_once(bronze)
    log = DeltaLog(locations.table_path(bronze.name))
    assert [commit.metadata["fast_path"] for commit in log.commits() if "batch" in (commit.metadata or {})] == [True]
    (file,) = log.state.live
    assert file.rows == 115
    assert len(rows_of(bronze.name)) == 115
    assert verify.verify(bronze).batches == 1


def test_what_the_reader_refuses_is_written_by_spark(run_once, bronze, topic, monkeypatch, caplog):
    def refuse(self, ranges):
        raise NotSupported("for a test")
        yield

    topic.create(2).send(1, 2, 3)
    monkeypatch.setattr(TopicReader, "read", refuse)
    run_once(bronze)
    assert sorted(row["value"] for row in rows_of(bronze.name)) == [b"1", b"2", b"3"]
    assert f"{bronze.name}: batches use Spark's writer: for a test" in caplog.text
    assert verify.verify(bronze).batches == 1
