"""The end of a driver's log, where the driver writes into a file on this machine."""

import os

from include.settings import settings

LINES = 100
# A line can be long, and a page shows a screen or two.
MOST_BYTES = 32_000


def last_lines(driver: str) -> str:
    """Returns the last lines; empty where there is no file."""
    file = settings().logs / f"driver-{driver}.log"
    # The name comes from a table file, and must not lead elsewhere.
    if file.parent != settings().logs or not file.is_file():
        return ""
    with file.open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - MOST_BYTES))
        lines = log.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-LINES:])
