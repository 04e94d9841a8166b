"""Topics as the source of a flow."""

from contextlib import suppress
from typing import Any

from include.checkpoints import checkpoint_files
from include.checkpoints.checkpoint_files import Position
from include.errors import FlowBroken
from include.flows.source import FlowSource, StartPosition, changed, commit_of
from include.kafka import cluster, topics
from include.kafka.broker import NoSuchTopic, Topics
from include.lake.paths import LakePath
from include.spec import Kafka, Table


class KafkaSource(FlowSource):
    def __init__(self, flow: Table) -> None:
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


def has_read_records(offset: dict[str, Any], end: dict[str, dict[str, int]]) -> bool:
    """Returns whether a Kafka offset covers these ends."""
    read = {topic: checkpoint_files.positions(offset, topic) for topic in end}
    return all(
        read[topic].get(int(partition), 0) >= after
        for topic, partitions in end.items()
        for partition, after in partitions.items()
    )
