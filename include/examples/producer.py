"""Sends events of fitness trackers and page views in real time until SIGTERM.

python -m include.examples.producer --rate 20
"""

import argparse
import heapq
import os
import secrets
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from types import FrameType

from confluent_kafka import KafkaError, Message, Producer

from include import logs
from include.errors import Unreachable, report
from include.examples import views
from include.examples.events import Event, events
from include.kafka import cluster

TOPIC = "tracker-events"
# Number of tracker events for each page view.
EVENTS_PER_VIEW = 4
FLUSH_SECONDS = 5
# Maximum number of buffered events. The producer blocks when the buffer is full.
BUFFERED_EVENTS = 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    rate = os.environ.get("SLUICE_EVENTS_PER_SECOND") or "20"
    parser.add_argument("--rate", type=float, default=rate, help="events a second; of page views, a quarter")
    parser.add_argument("--count", type=int, default=sys.maxsize, help="stop after so many events; without it, never")
    parser.add_argument("--seed", type=int, help="the same seed gives the same events; without it, new ones each time")
    arguments = parser.parse_args()
    logs.start()
    # Page views are numbered: with a constant seed, each start would send the same page views again.
    seed = secrets.randbits(64) if arguments.seed is None else arguments.seed
    logs.info(f"begins with --seed {seed}")
    signal.signal(signal.SIGTERM, _exit)
    producer = cluster.named(None).client(
        Producer,
        {
            "client.id": "sluice-events",
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 50,
            "queue.buffering.max.messages": BUFFERED_EVENTS,
            # 0: no timeout, because a broker may be unavailable for long.
            "message.timeout.ms": 0,
        },
    )
    try:
        send(producer, seed, arguments.count, arguments.rate)
    finally:
        undelivered = producer.flush(FLUSH_SECONDS)
        logs.info(f"{undelivered} events were not delivered" if undelivered else "every event was delivered")


def send(producer: Producer, seed: int, count: int, per_second: float) -> None:
    """Send `count` events, each at its due time. Raises Unreachable if the broker rejects an event."""
    began_seconds, start = time.monotonic(), datetime.now(UTC)
    views_per_second = per_second / EVENTS_PER_VIEW
    page_views = views.views(seed, count // EVENTS_PER_VIEW, start, views_per_second)
    schedule = heapq.merge(
        _with_due_time(TOPIC, events(seed, count, start, per_second), per_second),
        _with_due_time(views.TOPIC, page_views, views_per_second),
        key=lambda entry: entry[0],
    )
    for seconds, topic, event in schedule:
        wait = began_seconds + seconds - time.monotonic()
        producer.poll(max(wait, 0))
        if wait > 0:
            # poll returns early when it gets a delivery report.
            time.sleep(max(began_seconds + seconds - time.monotonic(), 0))
        while True:
            try:
                producer.produce(topic, event.value, event.key, on_delivery=_delivered)
                break
            except BufferError:
                producer.poll(0.5)


def _with_due_time(
    topic: str, events_of_topic: Iterable[Event], per_second: float
) -> Iterator[tuple[float, str, Event]]:
    """Each event with its due time in seconds and its topic."""
    return ((number / per_second, topic, event) for number, event in enumerate(events_of_topic))


def _delivered(error: KafkaError | None, _message: Message) -> None:
    if error:
        raise Unreachable(f"the broker at {cluster.named(None)} refused an event ({error}): read its log")


def _exit(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(0)


if __name__ == "__main__":
    report(main)
