"""Reads what the sources of several flows hold at one moment. Each source is asked once."""

import socket
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from include.control.supervision.lag_history import TREND_SECONDS
from include.delta.backlog import StreamSource
from include.delta.delta_log import DeltaLog
from include.kafka import broker, cluster
from include.kafka.broker import NoSuchTopic, PartitionOffsets
from include.kafka.retention import Limits
from include.lake import outages
from include.settings import settings
from include.spec import Delta, Kafka, Table

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
        self.lake_outage = outages.of_lake()
        self.now_seconds = time.time()
        self.since = self.now_seconds - TREND_SECONDS
        self._logs: dict[str, DeltaLog] = {}
        self._feeds: dict[tuple[str, bool], StreamSource] = {}
        self._timeout_seconds = timeout_seconds
        sources: dict[str | None, list[Kafka]] = {}
        for flow in flows:
            if isinstance(flow.source, Kafka):
                sources.setdefault(flow.source.cluster, []).append(flow.source)
        # In the background, while the tables are read, and all clusters at once.
        pool = ThreadPoolExecutor(max(1, len(sources)))
        self._topics = {name: pool.submit(self._read_topics, name, sources[name]) for name in sources}
        pool.shutdown(wait=False)

    def log(self, table: str) -> DeltaLog:
        """Returns a table's log. Raises Unreachable where the table is not stored."""
        if table not in self._logs:
            self._logs[table] = DeltaLog(settings().table_path(table))
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
