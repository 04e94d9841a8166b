"""How long a transaction waits for the control database."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# Much shorter than the TTL of a lease, so that a blocked writer has time for another try.
BUSY_TIMEOUT_SECONDS = 3

_ends_at: ContextVar[float] = ContextVar("ends_at")


@contextmanager
def limited() -> Iterator[None]:
    """Limit all waiting inside, for connections, locks and answers, to BUSY_TIMEOUT_SECONDS in total."""
    token = _ends_at.set(time.monotonic() + BUSY_TIMEOUT_SECONDS)
    try:
        yield
    finally:
        _ends_at.reset(token)


def seconds_left() -> float:
    """The seconds until a wait has to end."""
    now_seconds = time.monotonic()
    return max(0.0, _ends_at.get(now_seconds + BUSY_TIMEOUT_SECONDS) - now_seconds)
