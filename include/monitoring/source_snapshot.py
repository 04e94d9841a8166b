"""What the sources of some flows hold at one moment. Each is asked once, however many flows read it."""

import socket
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from include.control.supervision.lag_history import TREND_SECONDS
from include.readers import kafka_broker
from include.readers.delta_backlog import Feed
from include.readers.delta_log import Log
from include.readers.kafka_broker import NoSuchTopic, Span
from include.readers.kafka_retention import Limits
from include.settings import settings
from include.spec import Delta, Kafka, Table

# Enough for a broker that is there; who looks now and again would rather be told that it is not.
TIMEOUT_SECONDS = 1.0
KAFKA_PORT = 9092


@dataclass(frozen=True)
class Topic:
    """spans: by partition."""

    spans: dict[int, Span]
    limits: Limits


class Sources:
    """now, since: seconds since 1970, this moment and the one with which it is compared."""

    def __init__(self, flows: Iterable[Table], timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.now = time.time()
        self.since = self.now - TREND_SECONDS
        self._logs: dict[str, Log] = {}
        self._feeds: dict[tuple[str, bool], Feed] = {}
        self._timeout_seconds = timeout_seconds
        self._of_kafka = [flow.source for flow in flows if isinstance(flow.source, Kafka)]
        # Beside the tables, which are read meanwhile.
        pool = ThreadPoolExecutor(1)
        self._topics = pool.submit(self._ask)
        pool.shutdown(wait=False)

    def log(self, table: str) -> Log:
        """Raises Unreachable where the table is not stored."""
        if table not in self._logs:
            self._logs[table] = Log(settings().table_path(table))
        return self._logs[table]

    def feed(self, source: Delta) -> Feed:
        """Raises Unreachable where the table is not stored."""
        key = (source.table, source.changes)
        if key not in self._feeds:
            self._feeds[key] = Feed(self.log(source.table), source.changes)
        return self._feeds[key]

    def topics(self, source: Kafka) -> dict[str, Topic]:
        """By name. Raises Unreachable; a broker that is away costs one timeout, whoever asks how often."""
        known = self._topics.result()
        names = kafka_broker.matching(source, known)
        if missing := [name for name in names if name not in known]:
            raise NoSuchTopic(
                f"topic '{missing[0]}' does not exist on {settings().kafka}: create it, or correct the "
                f"table that reads it"
            )
        return {name: known[name] for name in names}

    def _ask(self) -> dict[str, Topic]:
        if not self._of_kafka:
            return {}
        topics = kafka_broker.Topics(settings().kafka, self._timeout_seconds)
        if not any(self._listens(server) for server in settings().kafka.split(",")):
            raise topics.no_broker()
        known = topics.partitions()
        names = {name for source in self._of_kafka for name in kafka_broker.matching(source, known) if name in known}
        spans = topics.spans([(name, partition) for name in names for partition in known[name]], self.since)
        limits = topics.configurations(names)
        return {
            name: Topic({partition: spans[name, partition] for partition in known[name]}, Limits.of(limits[name]))
            for name in names
        }

    def _listens(self, server: str) -> bool:
        """Whether somebody does there: Kafka's client would try for the whole timeout where nobody does."""
        place = urlsplit(f"//{server.strip().rpartition('://')[2]}")
        with (
            suppress(OSError),
            socket.create_connection((place.hostname, place.port or KAFKA_PORT), self._timeout_seconds),
        ):
            return True
        return False
