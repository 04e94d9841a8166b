"""What the broker says, asked without a JVM."""

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from include.errors import Unreachable

TIMEOUT_SECONDS = 10


def check_topic(servers: str, topic: str) -> None:
    """Raises Unreachable where no broker answers or the topic does not exist."""
    try:
        topics = AdminClient({"bootstrap.servers": servers, "log_level": 0}).list_topics(timeout=TIMEOUT_SECONDS).topics
    except KafkaException as error:
        raise Unreachable(
            f"SLUICE_KAFKA is {servers}, where no Kafka broker answers: start it (make up), or correct the setting"
        ) from error
    if topic not in topics:
        raise Unreachable(f"topic '{topic}' does not exist on {servers}: create it, or correct the table that reads it")


def end_offsets(servers: str, topic: str) -> dict[int, int]:
    """The next offset of each partition. Raises Unreachable."""
    check_topic(servers, topic)
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "sluice-ledger", "log_level": 0})
    try:
        partitions = consumer.list_topics(topic, timeout=TIMEOUT_SECONDS).topics[topic].partitions
        return {
            partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=TIMEOUT_SECONDS)[1]
            for partition in partitions
        }
    except KafkaException as error:
        raise Unreachable(f"the broker at {servers} does not say how far '{topic}' reaches: see its log") from error
    finally:
        consumer.close()
