"""No header of a record stops what only measures it, and no reader cuts its name off."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from include.checkpoints.offset_ranges import OffsetRange
from include.engine.fast_path.table_layout import NotSupported
from include.engine.fast_path.topic_reader import TopicReader
from include.kafka import broker
from include.kafka.cluster import Cluster
from include.spec import Kafka
from tests.support import raw_headers

NAMES = [[], ["ü".encode()], [b"ok", b"\xff"], [b"n\0x"], [b""], ["größe".encode("latin-1")], ["�".encode()]]


@pytest.fixture(scope="module")
def records() -> Iterator[str]:
    """The servers of a broker within this process, with a topic "odd": a record for each of `NAMES`, and 50 more."""
    producer = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "none:1", "log_level": 0})
    [node] = producer.list_topics(timeout=10).brokers.values()
    raw_headers.send(f"{node.host}:{node.port}", "odd", *NAMES, *[[b"\xff"]] * 50)
    yield f"{node.host}:{node.port}"
    del producer


def test_records_are_measured_whatever_the_names_of_their_headers_are(records):
    read = broker.read(Cluster(None, records), "odd", {0: (0, len(NAMES) + 49)})[0]
    assert [record.offset for record in read] == list(range(len(NAMES) + 50))
    assert [record.size for record in read[: len(NAMES)]] == [1, 4, 1, 3, 2, 1, 5]


def test_the_quarantine_gets_key_and_value_of_a_record_whose_headers_cannot_be_read(records, monkeypatch):
    monkeypatch.setattr(broker.cluster, "of", lambda source: Cluster(None, records))
    ranges = [OffsetRange("odd", 0, offset, offset + 1) for offset in (1, 2)]
    readable, other = broker.read_raw(Kafka("odd"), ranges)
    assert (readable["value"], readable["headers"]) == ("MQ==", [{"key": "ü", "value": "MQ=="}])
    assert (other["offset"], other["value"], other["headers"]) == (2, "Mg==", None)


@pytest.mark.parametrize("offset", range(1, len(NAMES)))
def test_records_with_headers_are_left_to_spark(records, offset):
    reader = TopicReader(Cluster(None, records))
    assert [part["headers"].to_pylist() for part in reader.read([OffsetRange("odd", 0, 0, 1)])] == [[None]]
    assert not reader.has_met_headers
    with pytest.raises(NotSupported, match="headers"):
        list(reader.read([OffsetRange("odd", 0, offset, offset + 1)]))
    assert reader.has_met_headers
