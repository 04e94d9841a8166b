"""Measures how far flows are behind their sources, without a JVM, and also while drivers and brokers are down."""

import socket
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import singledispatch
from urllib.parse import urlsplit

from deltalake.exceptions import DeltaError

from include.checkpoints import checkpoint_files
from include.checkpoints.checkpoint_files import Position
from include.control.supervision.lag_history import TREND_SECONDS
from include.delta import versions as beginning
from include.delta.backlog import StreamSource
from include.delta.delta_log import DeltaLog
from include.errors import SluiceError, Unreachable
from include.flows import files_source, refreshes
from include.kafka import broker, cluster, retention
from include.kafka.broker import NoSuchTopic, PartitionOffsets
from include.kafka.retention import Limits, PartitionPosition, RetentionClock
from include.lake import locations
from include.spec import Delta, Files, Kafka, Table

# Enough for a running broker. A missing one is reported soon.
TIMEOUT_SECONDS = 1.0
# A login takes a dozen further round trips.
LOGIN_SECONDS = 2.0
KAFKA_PORT = 9092


@dataclass(frozen=True)
class Topic:
    """A topic's state. spans: by partition."""

    spans: dict[int, PartitionOffsets]
    limits: Limits


class SourceSnapshot:
    """The sources of some flows. now, since: this moment and the earlier one to compare with, seconds since 1970.

    lake_outage: why the lake cannot be read, if it cannot.
    """

    def __init__(self, flows: Iterable[Table], timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.lake_outage = locations.outage()
        self.now_seconds = time.time()
        self.since = self.now_seconds - TREND_SECONDS
        self._logs: dict[str, DeltaLog] = {}
        self._feeds: dict[tuple[str, bool], StreamSource] = {}
        self._timeout_seconds = timeout_seconds
        sources: dict[str | None, list[Kafka]] = {}
        for flow in flows:
            for source in flow.topics:
                sources.setdefault(source.cluster, []).append(source)
        # In the background, while the tables are read, and all clusters at once.
        pool = ThreadPoolExecutor(max(1, len(sources)))
        self._topics = {name: pool.submit(self._read_topics, name, sources[name]) for name in sources}
        pool.shutdown(wait=False)

    def log(self, table: str) -> DeltaLog:
        """Returns a table's log. Raises Unreachable where the table is not stored."""
        if table not in self._logs:
            self._logs[table] = DeltaLog(locations.table_path(table))
        return self._logs[table]

    def feed(self, source: Delta) -> StreamSource:
        """Returns a source as a stream. Raises Unreachable where the table is not stored."""
        key = (source.table, source.changes)
        if key not in self._feeds:
            self._feeds[key] = StreamSource(self.log(source.table), source.changes)
        return self._feeds[key]

    def topics(self, source: Kafka) -> dict[str, Topic]:
        """Returns a source's topics by name. Raises Unreachable and AccessRefused. Missing brokers cost one timeout in
        total.
        """
        existing = self._topics[source.cluster].result()
        names = broker.matching(source, existing)
        if missing := [name for name in names if name not in existing]:
            raise NoSuchTopic(
                f"topic '{missing[0]}' does not exist on {cluster.of(source)}: create it, or correct the "
                f"table that reads it"
            )
        return {name: existing[name] for name in names}

    def _read_topics(self, name: str | None, sources: list[Kafka]) -> dict[str, Topic]:
        """Returns the topics of all sources in one cluster."""
        kafka_cluster = cluster.named(name)
        timeout_seconds = self._timeout_seconds + (LOGIN_SECONDS if kafka_cluster.file else 0)
        topics = broker.Topics(kafka_cluster, timeout_seconds)
        if not any(self._listens(server) for server in kafka_cluster.servers.split(",")):
            raise topics.no_answer()
        existing = topics.partitions()
        names = {name for source in sources for name in broker.matching(source, existing) if name in existing}
        spans = topics.spans([(name, partition) for name in names for partition in existing[name]], self.since)
        limits = topics.configurations(names)
        return {
            name: Topic({partition: spans[name, partition] for partition in existing[name]}, Limits.of(limits[name]))
            for name in names
        }

    def _listens(self, server: str) -> bool:
        """Returns whether a process listens there. Without one, Kafka's client would wait for the whole timeout."""
        address = urlsplit(f"//{server.strip().rpartition('://')[2]}")
        with (
            suppress(OSError),
            socket.create_connection((address.hostname, address.port or KAFKA_PORT), self._timeout_seconds),
        ):
            return True
        return False


@dataclass(frozen=True)
class Lag:
    """What a flow has not read. A field is None where its source has no such measure, or where it is unknown.

    unit, count: the measure of its source: records of a topic, files of a folder, or versions of a table.
        A view counts changed rows too, so it has no rows and bytes.
    versions, files, bytes, rows: of a table. `versions` counts all versions, the others count new data.
    offsets: of Kafka, by topic and partition, including transaction markers.
    seconds: the age of the oldest unread commit, record or file, by its own timestamp; 0 where nothing is unread.
    expires: when Kafka deletes the first unread record, if it does.
    is_more: files, bytes and rows cover the first commits only.
    has_begun: whether the flow has committed a batch.
    cluster: the name of the Kafka cluster; None for the default one.
    unknown: why the lag is unknown, in a sentence. is_away: because the source does not answer. is_topic_missing:
        because the broker answers, and has no such topic. is_lake_away: because the store of the lake does not answer,
        or refuses the credentials.
    """

    flow: str
    unit: str
    count: int | None = None
    versions: int | None = None
    files: int | None = None
    bytes: int | None = None
    rows: int | None = None
    offsets: dict[str, dict[int, int]] | None = None
    seconds: float | None = None
    expires: RetentionClock | None = None
    is_more: bool = False
    has_begun: bool = True
    unknown: str | None = None
    is_away: bool = False
    is_topic_missing: bool = False
    is_lake_away: bool = False
    cluster: str | None = None

    @property
    def hours_until_loss(self) -> float | None:
        """The hours until Kafka deletes the first unread record; None where it deletes none."""
        seconds = self.expires.expires_in_seconds if self.expires else None
        return None if seconds is None else seconds / 3600

    @property
    def is_up_to_date(self) -> bool:
        """Whether nothing is unread. A version without new data does not count."""
        return self.unknown is None and not (self.count if self.files is None else self.files)

    @property
    def words(self) -> str:
        """The lag in the measure of its source."""
        if self.unknown:
            if not self.is_away or self.is_lake_away or self.unit != "records":
                return self.unknown
            return f"unknown: no {'topic' if self.is_topic_missing else 'broker'}"
        if not self.has_begun:
            return "nothing read yet"
        # Without unread versions, the unread files belong to the version that the flow began with.
        of_cluster = f" of {self.cluster}" if self.cluster else ""
        return f"{self.count or self.files or 0:,} {self.unit if self.count or not self.files else 'files'}{of_cluster}"

    @property
    def short_words(self) -> str:
        """The words of a column. The reason of an unknown lag is a sentence, which stands below the table."""
        return "unknown" if self.unknown and self.words == self.unknown else self.words

    @property
    def reason(self) -> str:
        """Why the lag is unknown, for people. A source that does not answer is the reason of several flows."""
        return f"{self.unknown}" if self.is_away else f"{self.flow}: {self.unknown}"


def measure(flows: Iterable[Table], timeout_seconds: float = TIMEOUT_SECONDS) -> dict[str, Lag]:
    """Measures the lag of each flow. It raises nothing: see `Lag.unknown`.

    timeout_seconds: the maximum wait for the broker, for all flows.
    """
    listed = list(flows)
    return lags_of(listed, SourceSnapshot(listed, timeout_seconds))


def lags_of(flows: Iterable[Table], sources: SourceSnapshot) -> dict[str, Lag]:
    """Returns the lags of the flows that `sources` was made for."""
    # Kafka flows come last, because the broker may answer meanwhile.
    return {flow.flow: lag_of(flow, sources) for flow in sorted(flows, key=lambda flow: flow.origin.reads_topics)}


def lag_of(flow: Table, sources: SourceSnapshot) -> Lag:
    """Returns the lag of one of the flows that `sources` was made for."""
    lag = Lag(flow.flow, flow.origin.unit, cluster=flow.origin.cluster)
    if sources.lake_outage:
        return replace(lag, unknown=str(sources.lake_outage), is_away=True, is_lake_away=True)
    try:
        if flow.is_view:
            return _of_view(lag, flow.name, flow.source_as(Delta), sources)
        flow_position = checkpoint_files.position_of(flow.flow)
        lag = replace(lag, has_begun=flow_position is not None and flow_position.committed is not None)
        return _of_source(flow.source, flow, lag, flow_position, sources)
    except Unreachable as error:
        return replace(lag, unknown=str(error), is_away=True, is_topic_missing=isinstance(error, NoSuchTopic))
    except (SluiceError, DeltaError, OSError, ValueError, KeyError, TypeError) as error:
        return replace(lag, unknown=str(error))


@singledispatch
def _of_source(source: object, flow: Table, lag: Lag, flow_position: Position | None, sources: SourceSnapshot) -> Lag:
    """Returns the lag with what a flow at that position has not read of its source."""
    raise TypeError(f"{flow.flow} reads {source}")


@_of_source.register
def _of_kafka(source: Kafka, flow: Table, lag: Lag, flow_position: Position | None, sources: SourceSnapshot) -> Lag:
    clocks = [
        clock
        for name, topic in sources.topics(source).items()
        for clock in retention.clocks(cluster.of(source), _places(name, topic, flow_position), topic.limits)
    ]
    offsets: dict[str, dict[int, int]] = {}
    for clock in clocks:
        offsets.setdefault(clock.topic, {})[clock.partition] = clock.unread
    oldest_at = min((clock.oldest_at for clock in clocks if clock.oldest_at is not None), default=None)
    return replace(
        lag,
        count=sum(clock.unread for clock in clocks),
        offsets=offsets,
        seconds=_age(oldest_at, sources),
        expires=retention.first_to_expire(clocks),
    )


def _places(name: str, topic: Topic, flow_position: Position | None) -> list[PartitionPosition]:
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


@_of_source.register
def _of_files(source: Files, flow: Table, lag: Lag, flow_position: Position | None, sources: SourceSnapshot) -> Lag:
    checkpoint_path, end = (flow_position.checkpoint, flow_position.offset) if flow_position else (None, None)
    waiting = files_source.unread_files(flow, checkpoint_path, end)
    oldest_at = min((file.modified_ms / 1000 for file in waiting), default=None)
    size = sum(file.bytes for file in waiting)
    return replace(lag, count=len(waiting), files=len(waiting), bytes=size, seconds=_age(oldest_at, sources))


@_of_source.register
def _of_delta(source: Delta, flow: Table, lag: Lag, flow_position: Position | None, sources: SourceSnapshot) -> Lag:
    feed = sources.feed(source)
    newest = feed.log.newest
    if flow_position is not None and flow_position.offset is not None:
        versions, volume = (
            newest - checkpoint_files.read_version(flow_position.offset),
            feed.behind(flow_position.offset),
        )
    elif (first := beginning.first_version(lag.flow, source)) is not None:
        versions, volume = newest - first + 1, feed.since(first)
    else:
        versions, volume = newest + 1, feed.all()
    return replace(
        lag,
        count=versions,
        versions=versions,
        files=volume.files,
        bytes=volume.bytes,
        rows=volume.rows,
        seconds=_age(volume.oldest_at, sources),
        is_more=volume.is_more,
    )


def _of_view(lag: Lag, view: str, source: Delta, sources: SourceSnapshot) -> Lag:
    refresh = refreshes.newest(view)
    if source.is_pinned:
        return replace(lag, count=0, versions=0, files=0, seconds=0.0, has_begun=refresh is not None)
    # The change feed includes deleted and changed rows, which matter to a view.
    feed = sources.feed(replace(source, changes=True))
    read = refresh.read.get(source.table, -1) if refresh else -1
    volume = feed.all() if read < 0 else feed.since(read + 1)
    return replace(
        lag,
        count=feed.log.newest - read,
        versions=feed.log.newest - read,
        files=volume.files,
        seconds=_age(volume.oldest_at, sources),
        is_more=volume.is_more,
        has_begun=refresh is not None,
    )


def _age(oldest_at: float | None, sources: SourceSnapshot) -> float:
    return 0.0 if oldest_at is None else max(0.0, sources.now_seconds - oldest_at)
