"""Sends events at a constant rate."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from tests.support.topic import Topic


@dataclass
class ProducerStats:
    """times: the monotonic time (s) of each turn, when the broker has accepted its `events_per_turn` events."""

    events_per_turn: int
    times: list[float] = field(default_factory=list)

    def per_second(self, since: float | None = None, until: float | None = None) -> float:
        """Events per second between two monotonic times, by default over the whole time."""
        since, until = since or self.times[0], until or self.times[-1]
        return self.events_per_turn * sum(since < produced_at <= until for produced_at in self.times) / (until - since)


@contextmanager
def produce_repeatedly(
    send: Callable[[int], object], events_per_turn: int, every_seconds: float
) -> Iterator[ProducerStats]:
    """Call `send(turn)`, which sends `events_per_turn` events, until the block ends.

    A late turn does not delay later turns.
    """
    stats, stopped = ProducerStats(events_per_turn), threading.Event()
    begin = time.monotonic()

    def produce() -> None:
        turn = 0
        while not stopped.wait(max(0.0, begin + turn * every_seconds - time.monotonic())):
            send(turn)
            stats.times.append(time.monotonic())
            turn += 1

    with ThreadPoolExecutor() as pool:
        producer = pool.submit(produce)
        try:
            yield stats
        finally:
            stopped.set()
        producer.result()


def produce_numbers(topic: Topic, events_per_turn: int, every_seconds: float) -> AbstractContextManager[ProducerStats]:
    """Send numbers from 0 to 599, and in each turn a value that is not a number."""

    def send(turn: int) -> None:
        topic.send(*[(turn * 37 + n * 7) % 600 for n in range(events_per_turn - 1)], "broken")

    return produce_repeatedly(send, events_per_turn, every_seconds)
