"""How far a flow is behind its source: the measure, and the look at all sources at one moment that it is taken from."""

import socket
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from include.delta.backlog import StreamSource
from include.delta.delta_log import DeltaLog
from include.delta.table_logs import TableLogs
from include.kafka import broker, cluster
from include.kafka.broker import NoSuchTopic, PartitionOffsets
from include.kafka.retention import Limits, RetentionClock
from include.lake import locations
from include.spec import Delta, Flow, Kafka

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

    lake_outage: why the lake cannot be read, if it cannot. logs: of all tables that somebody has looked at.
    """

    def __init__(self, flows: Iterable[Flow], trend_seconds: float, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.lake_outage = locations.outage()
        self.now_seconds = time.time()
        self.since = self.now_seconds - trend_seconds
        self.logs = TableLogs()
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

    def age(self, oldest_at: float | None) -> float:
        """Returns the seconds since a moment; 0 where there is none."""
        return 0.0 if oldest_at is None else max(0.0, self.now_seconds - oldest_at)

    def log(self, table: str) -> DeltaLog:
        """Returns a table's log. Raises Unreachable where the table is not stored."""
        return self.logs.get(table)

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


class Movement(NamedTuple):
    """What came in a source and what its flow read of it since a moment, and what is unread now, in `unit`."""

    unit: str
    arrived: int
    read: int
    unread: int
