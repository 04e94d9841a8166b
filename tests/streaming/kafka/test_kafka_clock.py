"""A real broker reports the identity of a topic, and which records retention deletes and when."""

import base64
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest
from confluent_kafka import Producer

from include.errors import Unreachable
from include.kafka import broker, retention
from include.kafka.cluster import Cluster
from include.kafka.retention import LostOffsets
from include.local import broker as local_broker
from tests.conftest import free_port
from tests.support import topic as topics
from tests.support.waiting import wait_until

HOUR, DAY = 3600, 86400
# The broker looks for expired segments every 200 ms.
FAST_RETENTION = "log.retention.check.interval.ms=200\nlog.initial.task.delay.ms=200\n"


class Topic(topics.Topic):
    """A topic whose records have an age."""

    def send(
        self, *ages: float, partition: int = 0, value: bytes = b"x", key: bytes | None = None, **settings: str
    ) -> "Topic":
        """Send a record of each age (seconds), in this order."""
        producer = Producer({"bootstrap.servers": self.servers, "log_level": 0, **settings})
        errors = []
        for age in ages:
            producer.produce(
                self.name,
                value,
                key,
                partition=partition,
                timestamp=int((time.time() - age) * 1000),
                on_delivery=lambda error, _: errors.append(error) if error else None,
            )
        assert producer.flush(30) == 0
        assert errors == []
        return self

    def clock(self, position: int = 0) -> retention.RetentionClock:
        return retention.clock(self.cluster, self.name, {0: position})[0]

    def lost(self, positions: dict[int, int]) -> list[LostOffsets]:
        return retention.lost_offsets(self.cluster, self.name, positions)


@pytest.fixture
def topic(broker: str) -> Topic:
    return Topic(broker)


@pytest.fixture(scope="module")
def hasty(start_broker, tmp_path_factory) -> Iterator[tuple[str, psutil.Process]]:
    """The address and the process of a broker that deletes expired segments within a second."""
    directory = tmp_path_factory.mktemp("hasty")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_broker, "PROPERTIES", local_broker.PROPERTIES + FAST_RETENTION)
        address = start_broker(directory, free_port())
    children = psutil.Process().children()
    yield address, next(child for child in children if str(directory) in " ".join(child.cmdline()))


@contextmanager
def suspended(process: psutil.Process) -> Iterator[None]:
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


def about(seconds: float) -> object:
    return pytest.approx(seconds, abs=10)


def test_an_identity_stays_until_the_topic_is_created_anew_and_then_changes_at_once_for_the_same_client(topic: Topic):
    topic.create(3).send(*[0] * 5)
    broker_topics = broker.Topics(topic.cluster)
    identities = [broker_topics.identity(topic.name), broker_topics.identity(topic.name)]
    for records in (50, 500):
        topic.delete()
        topic.create(3).send(*[0] * records)
        identities.append(broker_topics.identity(topic.name))
        assert broker_topics.offsets(topic.name) == {0: (0, records), 1: (0, 0), 2: (0, 0)}
    assert identities[0] == identities[1]
    assert len(set(identities)) == 3
    assert len({identity.cluster_id for identity in identities}) == 1


def test_a_topic_id_is_written_as_kafkas_own_tools_write_it(topic: Topic):
    topic.create()
    identity = broker.identity(topic.cluster, topic.name)
    assert len(base64.b64decode(identity.topic_id + "==", altchars=b"-_", validate=True)) == 16


def test_two_topics_and_two_brokers_have_two_identities(topic: Topic, hasty):
    other_topic = Topic(hasty[0]).create()
    identity, other_identity = (
        broker.identity(created_topic.cluster, created_topic.name) for created_topic in (topic.create(), other_topic)
    )
    assert identity.cluster_id != other_identity.cluster_id
    assert identity.topic_id != other_identity.topic_id


@pytest.mark.parametrize("ask", [broker.identity, broker.offsets, broker.begin_offsets])
def test_a_topic_that_does_not_exist_is_one_sentence(topic: Topic, ask: Callable):
    with pytest.raises(Unreachable) as refusal:
        ask(topic.cluster, topic.name)
    assert str(refusal.value) == (
        f"topic '{topic.name}' does not exist on {topic.servers}: create it, or correct the table that reads it"
    )


@pytest.mark.parametrize("ask", [retention.clock, retention.lost_offsets])
def test_a_clock_of_a_topic_that_does_not_exist_is_the_same_sentence(topic: Topic, ask: Callable):
    with pytest.raises(Unreachable, match="does not exist on"):
        ask(topic.cluster, topic.name, {0: 0})


def test_a_broker_that_is_not_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(broker, "TIMEOUT_SECONDS", 1)
    servers = f"127.0.0.1:{free_port()}"
    with pytest.raises(Unreachable) as refusal:
        retention.clock(Cluster(None, servers), "events", {0: 0})
    assert str(refusal.value) == (
        f"SLUICE_KAFKA is {servers}, where no Kafka broker answers: start it (make up), or correct the setting"
    )


def test_a_broker_that_fell_asleep_is_unreachable_in_time_and_never_taken_at_a_wrong_word(hasty, monkeypatch):
    address, process = hasty
    monkeypatch.setattr(broker, "TIMEOUT_SECONDS", 1)
    hasty_topic = Topic(address).create().send(0)
    broker_topics = broker.Topics(hasty_topic.cluster)
    assert broker_topics.offsets(hasty_topic.name) == {0: (0, 1)}
    description = broker_topics._describe(hasty_topic.name)
    calls = [
        lambda: broker_topics.identity(hasty_topic.name),
        lambda: broker_topics.offsets(hasty_topic.name),
        lambda: broker_topics.configuration(hasty_topic.name),
        lambda: broker.read(hasty_topic.cluster, hasty_topic.name, {0: (0, 0)}),
        hasty_topic.clock,
    ]
    with suspended(process):
        for call in calls:
            began_at = time.monotonic()
            with pytest.raises(Unreachable):
                call()
            assert time.monotonic() - began_at < 3
        # If the broker stops between the two requests, the client returns a negative offset instead of an error.
        monkeypatch.setattr(broker_topics, "_describe", lambda _: description)
        with pytest.raises(Unreachable, match="no Kafka broker answers"):
            broker_topics.offsets(hasty_topic.name)


def test_begin_and_end_offsets_follow_what_is_deleted_and_sent(topic: Topic):
    topic.create(2).send(*[0] * 10)
    topic.delete_before(4)
    assert broker.offsets(topic.cluster, topic.name) == {0: (4, 10), 1: (0, 0)}
    assert broker.begin_offsets(topic.cluster, topic.name) == {0: 4, 1: 0}
    assert topic.ends() == {0: 10, 1: 0}


def test_asking_joins_no_group_and_commits_nothing(topic: Topic):
    topic.create().send(0).clock()
    groups = topic.admin.list_consumer_groups().result().valid
    assert "sluice-ledger" not in [group.group_id for group in groups]


def test_the_clock_runs_from_the_first_unread_record(topic: Topic):
    topic.create(retention_ms=str(DAY * 1000)).send(5 * HOUR, 4 * HOUR, HOUR, 0)
    clock = topic.clock(position=2)
    assert clock.expires_in_seconds == about(DAY - HOUR)
    assert (clock.begin, clock.position, clock.end, clock.unread, clock.retention_seconds) == (0, 2, 4, 2, DAY)
    assert clock.why == (
        "what is stored up to its first unread record, offset 2, is 3,600 s old, and retention.ms keeps 86,400 s"
    )


def test_the_broker_default_counts_where_the_topic_sets_nothing(topic: Topic):
    assert topic.create().send(HOUR).clock().expires_in_seconds == about(7 * DAY - HOUR)


def test_records_dated_1970_expire_at_once(topic: Topic):
    clock = topic.create().send(*[time.time() - 1] * 3).clock()
    assert clock.expires_in_seconds == 0


def test_one_wrong_date_among_right_ones_does_not_start_the_clock(topic: Topic):
    topic.create().send(HOUR, HOUR, time.time() - 1, HOUR)
    assert topic.clock(position=2).expires_in_seconds == about(7 * DAY - HOUR)


def test_a_date_in_the_future_expires_later(topic: Topic):
    topic.create(message_timestamp_after_max_ms=str(2**62)).send(-300 * 365 * DAY)
    clock = topic.clock()
    assert clock.expires_in_seconds == about(7 * DAY + 300 * 365 * DAY)
    assert "dated 9,460,800,000 s ahead" in clock.why


def test_a_date_no_calendar_knows_is_no_error(topic: Topic):
    topic.create(message_timestamp_after_max_ms=str(2**62)).send(-1e14)
    assert topic.clock().expires_in_seconds == pytest.approx(1e14)


def test_nothing_unread_has_no_clock(topic: Topic):
    topic.create(2).send(HOUR)
    read_clock, empty_clock = retention.clock(topic.cluster, topic.name, {0: 1, 1: 0})
    assert (read_clock.unread, read_clock.expires_in_seconds, read_clock.why) == (0, None, "everything is read")
    assert (empty_clock.unread, empty_clock.expires_in_seconds, empty_clock.why) == (0, None, "everything is read")


def test_a_topic_that_keeps_everything_has_no_clock(topic: Topic):
    clock = topic.create(retention_ms="-1").send(HOUR).clock()
    assert (clock.unread, clock.expires_in_seconds, clock.retention_seconds) == (1, None, None)
    assert clock.why == "no time and no size is set after which records are deleted"


def test_a_compacted_topic_has_no_clock_but_a_warning(topic: Topic):
    clock = topic.create(cleanup_policy="compact").send(HOUR, key=b"a").clock()
    assert clock.expires_in_seconds is None
    assert clock.why.endswith("compaction may remove the older values of a key before they are read")


def test_a_topic_that_compacts_and_deletes_has_both(topic: Topic):
    clock = topic.create(cleanup_policy="compact,delete").send(HOUR, key=b"a").clock()
    assert clock.expires_in_seconds == about(7 * DAY - HOUR)
    assert clock.why.endswith("compaction may remove the older values of a key before they are read")


def test_by_size_the_clock_runs_at_the_rate_the_unread_records_came(topic: Topic):
    topic.create(retention_ms="-1", retention_bytes="3000000")
    topic.send(*[100 - number / 10 for number in range(1000)], value=b"x" * 930)
    clock = topic.clock()
    assert clock.expires_in_seconds == pytest.approx(200, rel=0.05)
    sentence = r"by estimate 1,000,000 bytes are unread after (\d+) s, and retention.bytes keeps 3,000,000"
    seconds = re.fullmatch(sentence, clock.why)
    assert seconds, clock.why
    assert int(seconds[1]) == pytest.approx(100, rel=0.05)
    assert topic.clock(position=500).expires_in_seconds == pytest.approx(250, rel=0.05)


def test_by_size_what_does_not_fit_is_due(topic: Topic):
    topic.create(retention_ms="-1", retention_bytes="1000").send(*[100] * 20, value=b"x" * 930)
    assert topic.clock().expires_in_seconds == 0


def test_by_size_the_broker_holds_no_more_than_it_may_however_large_compressed_records_seem(topic: Topic):
    topic.create(retention_ms="-1", retention_bytes="2000000", segment_bytes="1048576")
    topic.send(*[100] * 10000, value=b"x" * 930, **{"compression.type": "zstd"})
    assert topic.clock(position=5000).expires_in_seconds == pytest.approx(31, abs=2)


def test_of_time_and_size_the_sooner_counts(topic: Topic):
    topic.create(retention_ms="150000", retention_bytes="3000000")
    topic.send(*[100] * 1000, value=b"x" * 930)
    assert topic.clock().expires_in_seconds == about(50)
    assert topic.clock(position=999).expires_in_seconds == about(50)


def test_records_dated_ahead_tell_no_rate(topic: Topic):
    clock = topic.create(retention_ms="-1", retention_bytes="3000000").send(-HOUR / 2).clock()
    assert clock.expires_in_seconds is None
    assert "unknown rate" in clock.why


def test_a_position_that_retention_overtook_is_due_and_names_what_is_lost(topic: Topic):
    topic.create().send(*[0] * 10)
    topic.delete_before(6)
    clock = topic.clock(position=2)
    assert (clock.expires_in_seconds, clock.unread) == (0, 4)
    assert clock.why == "offsets 2 to 5 were deleted before they were read"
    assert topic.lost({0: 2}) == [LostOffsets(topic.name, 0, 2, 6)]
    assert topic.lost({0: 6}) == []


def test_a_topic_created_anew_has_lost_what_was_read(topic: Topic):
    topic.create(2).send(*[0] * 10)
    topic.delete()
    topic.create(1).send(*[0] * 3)
    assert topic.lost({0: 10, 1: 4}) == [
        LostOffsets(topic.name, 0, 3, 10, shrank=True),
        LostOffsets(topic.name, 1, 0, 4, shrank=True),
    ]
    clock = topic.clock(position=10)
    assert (clock.expires_in_seconds, clock.unread) == (None, 0)
    assert clock.why == "the partition ends at 3, before the position: it was cut or recreated"


def test_a_new_partition_is_unread_from_its_beginning(topic: Topic):
    topic.create(2).send(HOUR, partition=1)
    assert [clock.unread for clock in retention.clock(topic.cluster, topic.name, {0: 0})] == [0, 1]
    assert topic.lost({0: 0}) == []


def test_an_aborted_transaction_at_the_position_counts_by_its_records_and_its_mark_does_not(topic: Topic):
    topic.create()
    producer = Producer({"bootstrap.servers": topic.servers, "transactional.id": topic.name, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic.name, b"x", timestamp=int((time.time() - HOUR) * 1000))
    producer.flush(30)
    producer.abort_transaction(30)
    # The broker writes the mark of the abort a moment later, and until then nothing behind the position can be read.
    wait_until(lambda: topic.clock(position=0).unread == 2, 30)
    assert topic.clock(position=0).expires_in_seconds == about(7 * DAY - HOUR)
    marker_clock = topic.clock(position=1)
    assert (marker_clock.unread, marker_clock.expires_in_seconds) == (1, None)
    assert marker_clock.why == "no record is left to read, only the marks of transactions"
    topic.send(60)
    assert topic.clock(position=1).expires_in_seconds == about(7 * DAY - 60)


def test_the_soonest_clock_is_the_one_that_runs_out_first(topic: Topic):
    topic.create(4).send(HOUR, partition=1).send(2 * HOUR, partition=2).send(0, partition=3)
    clocks = retention.clock(topic.cluster, topic.name, {})
    assert [clock.partition for clock in clocks] == [0, 1, 2, 3]
    assert retention.first_to_expire(clocks) == clocks[2]
    assert retention.first_to_expire(clocks[:1]) is None


def test_long_partitions_do_not_hold_each_other_up(topic: Topic):
    topic.create(3)
    for partition in range(3):
        topic.send(*[0] * 7000, value=b"x" * 100, partition=partition)
    began_at = time.monotonic()
    for position in range(0, 5000, 1000):
        retention.clock(topic.cluster, topic.name, dict.fromkeys(range(3), position))
    assert time.monotonic() - began_at < 3


def test_the_broker_keeps_an_unread_record_as_long_as_its_clock_says(hasty):
    due_topic = Topic(hasty[0]).create(retention_ms="3000").send(0, 0, 0)
    clock, requested_at = due_topic.clock(position=1), time.monotonic()
    assert 0 < clock.expires_in_seconds <= 3
    wait_until(lambda: broker.begin_offsets(due_topic.cluster, due_topic.name) == {0: 3}, 20)
    assert time.monotonic() - requested_at >= clock.expires_in_seconds
    assert due_topic.lost({0: 1}) == [LostOffsets(due_topic.name, 0, 1, 3)]


def test_the_broker_keeps_an_old_record_behind_a_younger_one_as_the_clock_says(hasty):
    kept_topic = Topic(hasty[0]).create(retention_ms=str(HOUR * 1000), segment_bytes="1048576")
    kept_topic.send(0, value=b"x" * 900_000).send(DAY, DAY, value=b"x" * 900_000)
    expired_topic = Topic(hasty[0]).create(retention_ms=str(HOUR * 1000)).send(DAY)
    wait_until(lambda: broker.begin_offsets(expired_topic.cluster, expired_topic.name) == {0: 1}, 20)
    assert broker.begin_offsets(kept_topic.cluster, kept_topic.name) == {0: 0}
    assert kept_topic.clock(position=1).expires_in_seconds == about(HOUR)
