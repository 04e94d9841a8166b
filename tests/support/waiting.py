"""Waits for conditions in tests."""

import time
from collections.abc import Callable


def wait_until(
    condition: Callable[[], object],
    timeout_seconds: float,
    details: Callable[[], str] = lambda: "",
    poll_seconds: float = 0.2,
) -> None:
    """Poll until the condition holds. Raises AssertionError, with `details()`, on timeout."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline, f"did not come true within {timeout_seconds:.0f} s. {details()}"
        time.sleep(poll_seconds)


def sleep_through(seconds: float) -> None:
    """Sleep for the duration of a fault, or until its random start.

    To wait for a condition that a test can observe, use `wait_until`.
    """
    time.sleep(max(0.0, seconds))
