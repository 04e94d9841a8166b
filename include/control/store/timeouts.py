"""How long anybody waits for the control database."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# Well under any lease, so that a blocked writer notices in time to try again.
BUSY_TIMEOUT_SECONDS = 3

_ends_at: ContextVar[float] = ContextVar("ends_at")


@contextmanager
def limited() -> Iterator[None]:
    """All the waiting inside, for a connection, locks and answers, ends after BUSY_TIMEOUT_SECONDS."""
    before = _ends_at.set(time.monotonic() + BUSY_TIMEOUT_SECONDS)
    try:
        yield
    finally:
        _ends_at.reset(before)


def seconds_left() -> float:
    """Until whoever waits has to give up."""
    now = time.monotonic()
    return max(0.0, _ends_at.get(now + BUSY_TIMEOUT_SECONDS) - now)
