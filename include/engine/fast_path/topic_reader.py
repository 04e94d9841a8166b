"""Reads the records of a batch from Kafka without Spark, with the columns of Spark's Kafka source.

Spark's query for them is a quarter of the CPU of a batch of a hundred records, and half of it in bulk. Offsets come
from the stream's checkpoint, as for Spark; nothing is committed to Kafka.
"""

import time
from collections.abc import Iterable, Iterator

import pyarrow as pa  # type: ignore[import-untyped]
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, Message, TopicPartition

from include.engine.fast_path.features import Refused
from include.readers.offset_ranges import Range

# At a time, before the first ones have shown how large they are, and then.
FIRST_RECORDS, MOST_RECORDS, PART_BYTES = 100, 10_000, 8 * 2**20
# Without a record or the end of a partition for so long, Spark may try, whose errors people know.
SILENT_SECONDS = 30
LOOK_SECONDS = 0.1
SCHEMA = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("ms", "UTC"),
        "timestampType": pa.int32(),
    }
)
PLACE = [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]

# What is left of a batch, by topic and partition: its first offset, and the one after its last.
Unread = dict[tuple[str, int], list[int]]


class TopicReader:
    """Of one flow; it keeps its connections from batch to batch, and asks for nothing between them."""

    def __init__(self, servers: str) -> None:
        self._most = FIRST_RECORDS
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "log_level": 0,
                # It joins no group and commits nothing; the client wants a group's name all the same.
                "group.id": "sluice-fast-path",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                # What the broker no longer holds is for Spark to complain of.
                "auto.offset.reset": "error",
                # Compaction and transactions leave offsets without a record, also the last one.
                "enable.partition.eof": True,
                "check.crcs": True,
                "queued.max.messages.kbytes": 32 * 1024,
                # An answer that waits for records would hold up the first question of the next batch.
                "fetch.wait.max.ms": 10,
                "fetch.queue.backoff.ms": 10,
            }
        )

    def read(self, ranges: Iterable[Range]) -> Iterator[pa.Table]:
        """The records of these ranges, as `SCHEMA`, some megabytes at a time.

        Raises Refused where the broker does not hand them out, or where they are not as Spark would read them.
        """
        unread = {(each.topic, each.partition): [each.first, each.after] for each in ranges}
        begins = [TopicPartition(*partition, first) for partition, (first, _) in unread.items()]
        try:
            self._consumer.assign(begins)
            try:
                while unread:
                    if records := self._next(unread):
                        yield self._measured(_table(records))
            finally:
                self._consumer.unassign()
        except (KafkaException, ValueError) as error:
            raise Refused(f"its records cannot be read outside Spark: {error}") from error

    def _next(self, unread: Unread) -> list[Message]:
        """The next records, at least one as long as there are any. `unread` is brought up to date."""
        deadline = time.monotonic() + SILENT_SECONDS
        while unread:
            # It waits until it has as many as were asked for, also where there are fewer.
            most = min(sum(after - first for first, after in unread.values()), self._most)
            if records := [each for each in self._consumer.consume(most, LOOK_SECONDS) if _take(each, unread)]:
                return records
            if time.monotonic() > deadline:
                raise Refused(f"the broker has handed out no record for {SILENT_SECONDS} s")
        return []

    def _measured(self, records: pa.Table) -> pa.Table:
        """These records, by whose size the number of the next ones is chosen."""
        self._most = max(1, min(MOST_RECORDS, PART_BYTES * len(records) // max(1, records.nbytes)))
        return records


def _take(message: Message, unread: Unread) -> bool:
    """Whether it is a record of the batch, which is unread no longer. A partition that is read to its end goes.

    The end of a partition may be told behind the last record, too, as compaction and transactions leave offsets
    without one; an end before it is that of a broker that is not up to date.
    """
    error, partition, offset = message.error(), (message.topic() or "", message.partition() or 0), message.offset() or 0
    if error and error.code() != KafkaError._PARTITION_EOF:
        raise KafkaException(error)
    left = unread.get(partition)
    if left is None:
        return False
    first, after = left
    is_record = error is None and offset < after
    if is_record and offset < first:
        raise Refused(f"the broker has handed out record {offset} of {partition} out of order")
    if offset + is_record >= after:
        del unread[partition]
    elif is_record:
        left[0] = offset + 1
    return is_record


def _table(records: list[Message]) -> pa.Table:
    timestamps = [record.timestamp() for record in records]
    if any(kind == TIMESTAMP_NOT_AVAILABLE for kind, _ in timestamps):
        raise Refused("its records have no timestamps")
    columns = {
        "key": [record.key() for record in records],
        "value": [record.value() for record in records],
        "headers": [record.headers() or None for record in records],
        "topic": [record.topic() for record in records],
        "partition": [record.partition() for record in records],
        "offset": [record.offset() for record in records],
        "timestamp": [milliseconds for _, milliseconds in timestamps],
        # Spark counts the kinds from 0 on.
        "timestampType": [kind - 1 for kind, _ in timestamps],
    }
    arrays = [pa.array(columns[field.name], field.type) for field in SCHEMA]
    # By partition, as Spark writes them: so they compress better.
    return pa.Table.from_arrays(arrays, schema=SCHEMA).sort_by(PLACE)
