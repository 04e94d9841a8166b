"""Waiting for what comes true, in tests."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], timeout_seconds: float, why: Callable[[], str] = lambda: "") -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline, f"did not come true within {timeout_seconds:.0f} s. {why()}"
        time.sleep(0.2)
