"""A loop of confluent-kafka and delta-rs from a topic to bronze: a peer of benchmarks.jobs.sluice without Spark."""

from typing import Any

import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from deltalake import CommitProperties, Transaction, write_deltalake

from benchmarks.jobs.sluice import TABLES, parser
from include.kafka import cluster
from include.lake import locations

ROWS_PER_COMMIT = 100_000
APPLICATION = "loop"
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": HEADERS,
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("ms", "UTC"),
        "timestampType": pa.int32(),
    }
)


def rows(messages: list[Any]) -> pa.Table:
    """Kafka messages as a table with `SCHEMA`."""
    columns = {
        "key": [message.key() for message in messages],
        "value": [message.value() for message in messages],
        "headers": [message.headers() for message in messages],
        "topic": [message.topic() for message in messages],
        "partition": [message.partition() for message in messages],
        "offset": [message.offset() for message in messages],
        "timestamp": [message.timestamp()[1] for message in messages],
        "timestampType": [message.timestamp()[0] - 1 for message in messages],
    }
    arrays = [pa.array(columns[field.name], field.type) for field in SCHEMA]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def main() -> None:
    arguments = parser().parse_args()
    consumer = cluster.named(None).client(Consumer, {"group.id": APPLICATION, "enable.auto.commit": False})
    partitions = consumer.list_topics(arguments.topic).topics[arguments.topic].partitions
    start_offsets = [TopicPartition(arguments.topic, number, OFFSET_BEGINNING) for number in partitions]
    unread = sum(consumer.get_watermark_offsets(partition)[1] for partition in start_offsets)
    consumer.assign(start_offsets)
    path, batch = str(locations.table_path(TABLES["bronze"].name)), 0
    messages: list[Any] = []
    while unread:
        new_messages = consumer.consume(10_000, timeout=1)
        messages += new_messages
        unread -= len(new_messages)
        if messages and (len(messages) >= ROWS_PER_COMMIT or not unread):
            commit_properties = CommitProperties(app_transactions=[Transaction(APPLICATION, batch)])
            write_deltalake(path, rows(messages), mode="append", commit_properties=commit_properties)
            messages, batch = [], batch + 1
    consumer.close()


if __name__ == "__main__":
    main()
