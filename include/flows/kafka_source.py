"""Topics as the source of a flow."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from include.checkpoints import checkpoint_files, offset_ranges
from include.checkpoints.checkpoint_files import Position
from include.errors import FlowBroken
from include.flows.batches import BatchRecord
from include.flows.lag import Lag, Movement, SourceSnapshot, Topic
from include.flows.source import FlowSource, ReadData, StartPosition, changed, commit_of
from include.kafka import cluster, retention, topics
from include.kafka.broker import NoSuchTopic, Topics
from include.kafka.retention import Limits, PartitionPosition
from include.lake.paths import LakePath
from include.spec import Flow, Kafka

# The time that a rewind, and its flow's first reads, may take before Kafka deletes the records.
LEAST_SECONDS = 3_600


class KafkaSource(FlowSource):
    def __init__(self, flow: Flow) -> None:
        super().__init__(flow)
        self._source = flow.source_as(Kafka)

    def identity(self) -> dict[str, Any]:
        return topics.source_identity(self._source)

    def is_continuation(self, previous: dict[str, Any], current: dict[str, Any]) -> bool:
        return topics.is_continuation(previous, current)

    def continues(self, previous: dict[str, Any], current: dict[str, Any]) -> bool:
        topics.require_same(self._flow, previous, current)
        return self.is_continuation(previous, current)

    def require_unread_available(self, checkpoint: LakePath, batch: int, current: dict[str, Any]) -> None:
        topics.require_unread_available(self._flow, checkpoint_files.end_offset(checkpoint, batch), current)

    def added(self, previous: dict[str, Any], current: dict[str, Any]) -> dict[str, str]:
        return topics.added(previous, current)

    def start(self, metadata: dict[str, Any] | None, accepts_loss: bool) -> StartPosition:
        if not accepts_loss:
            return super().start(metadata, accepts_loss)
        previous, offset = (metadata["source"], metadata["source_to"]) if metadata else ({}, None)
        start, lost = topics.after_loss(self._source, offset or {}, previous, self.identity())
        return StartPosition(start, commit_of(metadata), lost)

    def _after(self, metadata: dict[str, Any]) -> StartPosition:
        return StartPosition(metadata["source_to"], commit_of(metadata))

    def _another_source(self, previous: dict[str, Any], current: dict[str, Any]) -> FlowBroken:
        what = changed(self._flow, previous, current)
        return FlowBroken(f"{what}: action accept data loss begins at the start of the new topic", "TOPIC_REPLACED")

    def end(self) -> dict[str, Any]:
        """Returns by topic and partition the next offset; no empty partition."""
        existing, ends = Topics(cluster.of(self._source)), dict[str, dict[str, int]]()
        for name in existing.names(self._source):
            with suppress(NoSuchTopic):
                spans = existing.offsets(name)
                ends[name] = {str(partition): end for partition, (begin, end) in spans.items() if end > begin}
        return {name: partitions for name, partitions in ends.items() if partitions}

    def _has_passed(self, flow_position: Position, end: dict[str, Any]) -> bool:
        return has_read_records(flow_position.offset, end)

    def lag(self, lag: Lag, flow_position: Position | None, sources: SourceSnapshot) -> Lag:
        clocks = [
            clock
            for name, topic in sources.topics(self._source).items()
            for clock in retention.clocks(
                cluster.of(self._source), _partition_positions(name, topic, flow_position), topic.limits
            )
        ]
        offsets: dict[str, dict[int, int]] = {}
        for clock in clocks:
            offsets.setdefault(clock.topic, {})[clock.partition] = clock.unread
        oldest_at = min((clock.oldest_at for clock in clocks if clock.oldest_at is not None), default=None)
        return replace(
            lag,
            count=sum(clock.unread for clock in clocks),
            offsets=offsets,
            seconds=sources.age(oldest_at),
            expires=retention.first_to_expire(clocks),
        )

    def movement(self, lag: Lag, metadata: dict[str, Any], sources: SourceSnapshot) -> Movement | None:
        arrived = read = 0
        for name, topic in sources.topics(self._source).items():
            earlier_positions = checkpoint_files.positions(metadata["source_to"], name)
            for partition, span in topic.spans.items():
                arrived += span.end - span.end_then
                read += span.end - (lag.offsets or {})[name][partition] - earlier_positions.get(partition, span.begin)
        return Movement(lag.unit, arrived, read, lag.count or 0)

    def read_by(self, batches: Sequence[BatchRecord]) -> ReadData:
        ranges = [part for batch in batches for part in offset_ranges.kafka_ranges(batch.source_from, batch.source_to)]
        return ReadData(ranges=offset_ranges.merge_adjacent(ranges))

    def datasets(self, offset: Any) -> list[str]:
        server = cluster.of(self._source).servers.split(",")[0]
        names = list(offset) if isinstance(offset, dict) else self._source.names
        return [f"kafka://{server}/{name}" for name in names]

    def obstacles(self, metadata: dict[str, Any] | None, newest: dict[str, Any] | None) -> Iterator[str]:
        flow, current, previous = self._flow.flow, self.identity(), (metadata or newest or {}).get("source") or {}
        if not self.is_continuation(previous, current):
            yield f"{flow}: a topic that it has read is gone, or was recreated"
            return
        kafka_cluster = cluster.of(self._source)
        for topic in current["topics"]:
            if Limits.of(Topics(kafka_cluster).configuration(topic)).compacts:
                yield f"{flow}: topic '{topic}' is compacted, so it may hold other records than were read"
            read = checkpoint_files.positions(metadata["source_to"] if metadata else None, topic)
            for clock in retention.clock(kafka_cluster, topic, read):
                seconds = clock.expires_in_seconds
                expires = clock.unread > 0 and seconds is not None and seconds < LEAST_SECONDS
                if expires or not clock.begin <= clock.position <= clock.end:
                    yield f"{flow}: {topic}/{clock.partition} cannot be read again from {clock.position}: {clock.why}"


def has_read_records(offset: dict[str, Any], end: dict[str, dict[str, int]]) -> bool:
    """Returns whether a Kafka offset covers these ends."""
    read = {topic: checkpoint_files.positions(offset, topic) for topic in end}
    return all(
        read[topic].get(int(partition), 0) >= after
        for topic, partitions in end.items()
        for partition, after in partitions.items()
    )


def _partition_positions(name: str, topic: Topic, flow_position: Position | None) -> list[PartitionPosition]:
    """Returns the flow's position in each partition.

    A flow without a batch starts at the first offset. Partitions that are added later are read from offset 0 on.
    """
    read = (
        None
        if flow_position is None or flow_position.committed is None
        else checkpoint_files.positions(flow_position.offset, name)
    )
    return [
        PartitionPosition(name, partition, span.begin if read is None else read.get(partition, 0), span.begin, span.end)
        for partition, span in topic.spans.items()
    ]
