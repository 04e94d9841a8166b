"""Reads the records of a batch from Kafka without Spark, with the columns of Spark's Kafka source.

A Spark query over a hundred records costs twenty times what reading them does, and one over millions twice as much.
Offsets come from the stream's checkpoint, as for Spark; nothing is committed to Kafka.
"""

import time
from collections.abc import Iterable, Iterator

import pyarrow as pa  # type: ignore[import-untyped]
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, Message, TopicPartition

from include.engine.fast_path.features import Refused
from include.ledger.spans import Range

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

Partition = tuple[str, int]


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
        ranges = list(ranges)
        after = {(each.topic, each.partition): each.after for each in ranges}
        left = sum(each.count for each in ranges)
        try:
            self._consumer.assign([TopicPartition(each.topic, each.partition, each.first) for each in ranges])
            try:
                while after:
                    if records := self._next(after, min(left, self._most)):
                        part = _table(records)
                        yield part
                        left -= len(part)
                        self._most = max(1, min(MOST_RECORDS, PART_BYTES * len(part) // max(1, part.nbytes)))
            finally:
                self._consumer.unassign()
        except (KafkaException, ValueError) as error:
            raise Refused(f"its records cannot be read outside Spark: {error}") from error

    def _next(self, after: dict[Partition, int], most: int) -> list[Message]:
        """At most so many records, at least one as long as there are any. Partitions that are read to their end leave
        `after`.
        """
        deadline = time.monotonic() + SILENT_SECONDS
        while after:
            # It waits until it has as many as were asked for, also where there are fewer.
            if came := self._consumer.consume(max(1, most), LOOK_SECONDS):
                if records := [message for message in came if _belongs(message, after)]:
                    return records
                deadline = time.monotonic() + SILENT_SECONDS
            elif time.monotonic() > deadline:
                raise Refused(f"the broker has handed out no record for {SILENT_SECONDS} s")
        return []


def _belongs(message: Message, after: dict[Partition, int]) -> bool:
    """Whether it is a record of the batch. A partition whose last one has come leaves `after`."""
    error, partition = message.error(), (message.topic() or "", message.partition() or 0)
    if error and error.code() != KafkaError._PARTITION_EOF:
        raise KafkaException(error)
    end = after.get(partition)
    if end is None:
        return False
    is_record = error is None and (message.offset() or 0) < end
    if not is_record or message.offset() == end - 1:
        del after[partition]
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
