"""The Kafka topic of a test."""

import time
import uuid
from contextlib import suppress

from confluent_kafka import IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from include.errors import Unreachable
from include.kafka import broker
from include.kafka.cluster import Cluster
from tests.support import expected
from tests.support.expected import Message
from tests.support.waiting import wait_until


class Topic:
    """A topic, by default with a random name. Value number `n` of a call goes to the partition `n % partitions`."""

    def __init__(self, servers: str, name: str | None = None) -> None:
        self.servers, self.name = servers, name or f"t{uuid.uuid4().hex[:12]}"
        self.cluster = Cluster(None, servers)
        self.admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        self.partitions = 1

    def create(self, partitions: int = 1, **config: str) -> "Topic":
        # The broker may not have completed the deletion of an earlier topic.
        settings = {name.replace("_", "."): value for name, value in config.items()}
        wait_until(lambda: self._created(NewTopic(self.name, partitions, 1, config=settings)), 180)
        wait_until(lambda: self._is_known(partitions), 60)
        self.partitions = partitions
        return self

    def delete(self) -> None:
        self.admin.delete_topics([self.name])[self.name].result()

    def add_partitions(self, partitions: int) -> None:
        self.admin.create_partitions([NewPartitions(self.name, partitions)])[self.name].result()
        wait_until(lambda: self._is_known(partitions), 60)
        self.partitions = partitions

    def configure(self, **config: str) -> None:
        entries = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, self.name, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result()

    def send(self, *values: object, **settings: object) -> "Topic":
        producer = Producer({"bootstrap.servers": self.servers, "log_level": 0, **settings})
        refused: list[object] = []
        self._produce(producer, values, refused)
        assert producer.flush(60) == 0
        assert refused == []
        return self

    def send_keyed(self, key: str, *values: object) -> None:
        """Send values with the same key to partition 0. Compaction keeps only the last value."""
        producer = Producer({"bootstrap.servers": self.servers, "log_level": 0})
        for value in values:
            producer.produce(self.name, str(value).encode(), key=key.encode(), partition=0)
        assert producer.flush(60) == 0

    def send_at(self, at_seconds: float, *values: object) -> "Topic":
        """Send records with this timestamp, in seconds since 1970."""
        producer = Producer({"bootstrap.servers": self.servers, "log_level": 0})
        for index, value in enumerate(values):
            partition = index % self.partitions
            producer.produce(self.name, str(value).encode(), partition=partition, timestamp=int(at_seconds * 1000))
        assert producer.flush(60) == 0
        return self

    def send_in_transactions(self, *commits: tuple[bool, tuple[object, ...]]) -> "Topic":
        """Send transactions. Each is a pair: whether to commit it, and its values."""
        producer = Producer({"bootstrap.servers": self.servers, "log_level": 0, "transactional.id": self.name})
        producer.init_transactions()
        for is_committed, values in commits:
            producer.begin_transaction()
            self._produce(producer, values, [])
            # Without a flush, an aborted transaction does not reach the topic.
            producer.flush(60)
            (producer.commit_transaction if is_committed else producer.abort_transaction)()
        # The broker answers before it has written the markers, and until then the transaction is open.
        wait_until(lambda: self._ends(IsolationLevel.READ_COMMITTED) == self._ends(IsolationLevel.READ_UNCOMMITTED), 60)
        return self

    def _ends(self, isolation: IsolationLevel) -> list[int]:
        """The next offset of each partition that a reader may read."""
        latest = {TopicPartition(self.name, partition): OffsetSpec.latest() for partition in range(self.partitions)}
        answers = self.admin.list_offsets(latest, isolation_level=isolation).values()
        return [answer.result().offset for answer in answers]

    def delete_before(self, offset: int, partition: int = 0) -> None:
        """Delete all records before this offset, as retention does."""
        target = TopicPartition(self.name, partition, offset)
        self.admin.delete_records([target])[target].result()

    def messages(self) -> list[Message]:
        """All committed messages of the topic."""
        return expected.messages(self.servers, self.name)

    def _produce(self, producer: Producer, values: tuple[object, ...], refused: list[object]) -> None:
        for number, value in enumerate(values):
            payload = value if isinstance(value, bytes) else str(value).encode()
            producer.produce(
                self.name,
                payload,
                partition=number % self.partitions,
                timestamp=int(time.time() * 1000),
                on_delivery=lambda error, _: refused.append(error) if error else None,
            )

    def ends(self) -> dict[int, int]:
        """The next offset of each partition."""
        return {partition: end for partition, (_, end) in broker.offsets(self.cluster, self.name).items()}

    def _created(self, topic: NewTopic) -> bool:
        with suppress(KafkaException):
            self.admin.create_topics([topic])[self.name].result()
            return True
        return False

    def _is_known(self, partitions: int) -> bool:
        with suppress(Unreachable):
            return len(broker.offsets(self.cluster, self.name)) == partitions
        return False
