"""Events that keep coming."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from tests.support.topic import Topic


@dataclass
class Sent:
    """moments: of each time that the broker has taken `at_once` events, by the monotonic clock."""

    at_once: int
    moments: list[float] = field(default_factory=list)

    def per_second(self, since: float | None = None, until: float | None = None) -> float:
        """Between two moments, or all the time."""
        since, until = since or self.moments[0], until or self.moments[-1]
        return self.at_once * sum(since < one <= until for one in self.moments) / (until - since)


@contextmanager
def producing(send: Callable[[int], object], at_once: int, every_seconds: float) -> Iterator[Sent]:
    """To the end of the block: `send(turn)` sends `at_once` events. A turn that is late does not move the next ones."""
    sent, over = Sent(at_once), threading.Event()
    begin = time.monotonic()

    def produce() -> None:
        turn = 0
        while not over.wait(max(0.0, begin + turn * every_seconds - time.monotonic())):
            send(turn)
            sent.moments.append(time.monotonic())
            turn += 1

    with ThreadPoolExecutor() as pool:
        produced = pool.submit(produce)
        try:
            yield sent
        finally:
            over.set()
        produced.result()


def flowing(topic: Topic, at_once: int, every_seconds: float) -> AbstractContextManager[Sent]:
    """Numbers of ten minutes, and each time one that is no number."""

    def send(turn: int) -> None:
        topic.send(*[(turn * 37 + n * 7) % 600 for n in range(at_once - 1)], "broken")

    return producing(send, at_once, every_seconds)
