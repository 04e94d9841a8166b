"""Sends events at a constant rate."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from tests.support.topic import Topic


@dataclass
class Sent:
    """moments: monotonic times (s) at which the broker had accepted another `at_once` events."""

    at_once: int
    moments: list[float] = field(default_factory=list)

    def per_second(self, since: float | None = None, until: float | None = None) -> float:
        """Events per second between two monotonic times, by default over the whole time."""
        since, until = since or self.moments[0], until or self.moments[-1]
        return self.at_once * sum(since < moment <= until for moment in self.moments) / (until - since)


@contextmanager
def producing(send: Callable[[int], object], at_once: int, every_seconds: float) -> Iterator[Sent]:
    """Call `send(turn)`, which sends `at_once` events, until the block ends. A late turn does not delay later ones."""
    sent, stopped = Sent(at_once), threading.Event()
    begin = time.monotonic()

    def produce() -> None:
        turn = 0
        while not stopped.wait(max(0.0, begin + turn * every_seconds - time.monotonic())):
            send(turn)
            sent.moments.append(time.monotonic())
            turn += 1

    with ThreadPoolExecutor() as pool:
        producer = pool.submit(produce)
        try:
            yield sent
        finally:
            stopped.set()
        producer.result()


def flowing(topic: Topic, at_once: int, every_seconds: float) -> AbstractContextManager[Sent]:
    """Send numbers from 0 to 599, and in each turn a value that is not a number."""

    def send(turn: int) -> None:
        topic.send(*[(turn * 37 + n * 7) % 600 for n in range(at_once - 1)], "broken")

    return producing(send, at_once, every_seconds)
