"""Reads the records of a batch from Kafka without Spark, with the columns of Spark's Kafka source.

Spark's query takes a quarter of the CPU time of a batch of a hundred records, and half of it in bulk. As for Spark,
offsets come from the stream's checkpoint, and nothing is committed to Kafka.
"""

import time
from collections.abc import Iterable, Iterator

import pyarrow as pa
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, Message, TopicPartition

from include.checkpoints.offset_ranges import OffsetRange
from include.engine.fast_path.table_layout import NotSupported
from include.kafka import broker
from include.kafka.cluster import Cluster

# Records to request at a time: the first ones, the maximum, and the bytes that a request should deliver.
FIRST_RECORDS, MOST_RECORDS, PART_BYTES = 100, 10_000, 8 * 2**20
# After this long without a record or an end of partition, Spark takes over; its errors are well known.
SILENT_SECONDS = 30
LOOK_SECONDS = 0.1
# The years that readers of Delta know, in milliseconds since 1970.
FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999
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
SORT_ORDER = [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]

# The unread rest of a batch, by topic and partition: its first offset, and the one after its last.
Unread = dict[tuple[str, int], list[int]]


class TopicReader:
    """Reads the batches of one flow. Keeps its connections between batches, without sending requests.

    has_met_headers: a record with headers was refused. Kafka's client for Python cuts a name off at a NUL, and hands
    out no name that is no UTF-8.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.has_met_headers = False
        self._most_records = FIRST_RECORDS
        self._consumer = cluster.client(
            Consumer,
            {
                # The client requires a group name, although it joins no group and commits nothing.
                "group.id": "sluice-fast-path",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                # Lost offsets are an error here, so that Spark reports them.
                "auto.offset.reset": "error",
                # Compaction and transactions leave offsets without records, even the last one.
                "enable.partition.eof": True,
                "check.crcs": True,
                "queued.max.messages.kbytes": 32 * 1024,
                # A fetch that waits for records would delay the first request of the next batch.
                "fetch.wait.max.ms": 10,
                "fetch.queue.backoff.ms": 10,
            },
        )

    def read(self, ranges: Iterable[OffsetRange]) -> Iterator[pa.Table]:
        """Yields the records of these ranges as tables of `SCHEMA`, some megabytes each.

        Raises NotSupported if the broker does not deliver them, or if Spark would read them differently.
        """
        unread = {(range_.topic, range_.partition): [range_.first, range_.after] for range_ in ranges}
        assignment = [TopicPartition(*partition, first) for partition, (first, _) in unread.items()]
        try:
            self._consumer.assign(assignment)
            try:
                while unread:
                    if records := self._next_records(unread):
                        if any(broker.headers(record) != [] for record in records):
                            self.has_met_headers = True
                            raise ValueError("they have headers, whose names Spark alone reads as they are")
                        yield self._adapt_batch_size(_table(records))
            finally:
                self._consumer.unassign()
        except (KafkaException, ValueError) as error:
            raise NotSupported(f"its records cannot be read outside Spark: {error}") from error

    def _next_records(self, unread: Unread) -> list[Message]:
        """Returns the next records, at least one unless `unread` is finished, and updates `unread`."""
        deadline = time.monotonic() + SILENT_SECONDS
        while unread:
            # `consume` waits for the requested number, even if the partition holds fewer.
            limit = min(sum(after - first for first, after in unread.values()), self._most_records)
            if records := [
                message for message in self._consumer.consume(limit, LOOK_SECONDS) if _consume(message, unread)
            ]:
                return records
            if time.monotonic() > deadline:
                raise ValueError(f"the broker has handed out no record for {SILENT_SECONDS} s")
        return []

    def _adapt_batch_size(self, records: pa.Table) -> pa.Table:
        """Sets the number of records to request next by the size of these; returns these."""
        self._most_records = max(1, min(MOST_RECORDS, PART_BYTES * len(records) // max(1, records.nbytes)))
        return records


def _consume(message: Message, unread: Unread) -> bool:
    """Returns whether the message is a record of the batch, and removes it from `unread`.

    The end of a partition may come after the last record, because compaction and transactions leave offsets without
    records. An end before the last record comes from a broker that lags behind.
    """
    error, partition, offset = message.error(), (message.topic() or "", message.partition() or 0), message.offset() or 0
    if error and error.code() != KafkaError._PARTITION_EOF:
        raise KafkaException(error)
    offsets = unread.get(partition)
    if offsets is None:
        return False
    first, after = offsets
    is_record = error is None and offset < after
    if is_record and offset < first:
        raise ValueError(f"the broker has handed out record {offset} of {partition} out of order")
    if offset + is_record >= after:
        del unread[partition]
    elif is_record:
        offsets[0] = offset + 1
    return is_record


def _table(records: list[Message]) -> pa.Table:
    timestamps = [record.timestamp() for record in records]
    if any(type_ == TIMESTAMP_NOT_AVAILABLE for type_, _ in timestamps):
        raise ValueError("they have no timestamps")
    if any(not FIRST_MS <= milliseconds <= LAST_MS for _, milliseconds in timestamps):
        raise ValueError("the time of one is not within the years 1 to 9999")
    columns = {
        "key": [record.key() for record in records],
        "value": [record.value() for record in records],
        "headers": [None] * len(records),
        "topic": [record.topic() for record in records],
        "partition": [record.partition() for record in records],
        "offset": [record.offset() for record in records],
        "timestamp": [milliseconds for _, milliseconds in timestamps],
        # Spark's timestamp types start at 0.
        "timestampType": [type_ - 1 for type_, _ in timestamps],
    }
    arrays = [pa.array(columns[field.name], field.type) for field in SCHEMA]
    # Sorted by partition, as Spark writes them, because that compresses better.
    return pa.Table.from_arrays(arrays, schema=SCHEMA).sort_by(SORT_ORDER)
