"""Waiting for what comes true, in tests."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], timeout_seconds: float, why: Callable[[], str] = lambda: "") -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline, f"did not come true within {timeout_seconds:.0f} s. {why()}"
        time.sleep(0.2)


def let_pass(seconds: float) -> None:
    """A stretch of time that belongs to the fault itself: how long it lasts, or at which random moment it strikes.

    Whatever a test can look at, it waits for with `wait_until`.
    """
    time.sleep(max(0.0, seconds))
