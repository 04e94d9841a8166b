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

from include.errors import Unreachable, report
from include.examples import views
from include.examples.events import Event, events
from include.settings import settings

TOPIC = "tracker-events"
# So many events come with each page view.
EVENTS_PER_VIEW = 4
FLUSH_SECONDS = 5
# What waits for a broker that is away, at most; then the producer waits too.
BUFFERED_EVENTS = 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    rate = os.environ.get("SLUICE_EVENTS_PER_SECOND") or "20"
    parser.add_argument("--rate", type=float, default=rate, help="events a second; of page views, a quarter")
    parser.add_argument("--count", type=int, default=sys.maxsize, help="stop after so many events; without it, never")
    parser.add_argument("--seed", type=int, help="the same seed gives the same events; without it, new ones each time")
    given = parser.parse_args()
    # A page view is known by its number alone: with one seed for all starts, each start would repeat the one before.
    seed = secrets.randbits(64) if given.seed is None else given.seed
    print(f"begins with --seed {seed}", flush=True)
    signal.signal(signal.SIGTERM, _leave)
    producer = Producer(
        {
            "bootstrap.servers": settings().kafka,
            "client.id": "sluice-events",
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 50,
            "queue.buffering.max.messages": BUFFERED_EVENTS,
            # Never give an event up: a broker may be away for long.
            "message.timeout.ms": 0,
        }
    )
    try:
        send(producer, seed, given.count, given.rate)
    finally:
        left = producer.flush(FLUSH_SECONDS)
        print(f"{left} events were not delivered" if left else "every event was delivered", flush=True)


def send(producer: Producer, seed: int, count: int, per_second: float) -> None:
    """Send `count` events, each when it is due. Raises Unreachable where the broker refuses one for good."""
    begin, now = time.monotonic(), datetime.now(UTC)
    views_per_second = per_second / EVENTS_PER_VIEW
    some_views = views.views(seed, count // EVENTS_PER_VIEW, now, views_per_second)
    schedule = heapq.merge(
        _due(TOPIC, events(seed, count, now, per_second), per_second),
        _due(views.TOPIC, some_views, views_per_second),
        key=lambda one: one[0],
    )
    for seconds, topic, event in schedule:
        wait = begin + seconds - time.monotonic()
        producer.poll(max(wait, 0))
        if wait > 0:
            # poll returns early when a report comes in.
            time.sleep(max(begin + seconds - time.monotonic(), 0))
        while True:
            try:
                producer.produce(topic, event.value, event.key, on_delivery=_delivered)
                break
            except BufferError:
                producer.poll(0.5)


def _due(topic: str, some: Iterable[Event], per_second: float) -> Iterator[tuple[float, str, Event]]:
    """Each with the second at which it is due."""
    return ((number / per_second, topic, event) for number, event in enumerate(some))


def _delivered(error: KafkaError | None, _message: Message) -> None:
    if error:
        raise Unreachable(f"the broker at {settings().kafka} refused an event ({error}): read its log")


def _leave(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(0)


if __name__ == "__main__":
    report(main)
