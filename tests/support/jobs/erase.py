"""`jobs/erase.py` for the tables of a test: python -m tests.support.jobs.erase NAME TOPIC NUMBER [MOMENT]

With a moment it ends there as by SIGKILL, its JVM first.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from include.control import suppression
from include.control.jobs import store
from include.engine.jobs import erase, refresh
from include.engine.jobs.erase import EraseJob
from include.engine.stream import driver
from include.engine.tables import erase_rows
from include.erasure import certificate, cleaning, requests, scan
from include.errors import report
from tests.support.people import People

# By moment, in the order of the job: what is called then, how often the same try has called it before, and whether it
# is done. Each try begins with the stage that the one before it has not noted.
MOMENTS: dict[str, tuple[Any, str, int, bool]] = {
    "the subject is not on the list yet": (suppression, "add", 0, False),
    "the list is written, and nobody has noted it": (EraseJob, "_suppress", 0, True),
    "rows of the first table are not looked for yet": (EraseJob, "_take_rows", 0, False),
    "files are written again, and no commit has them": (erase_rows, "prepare", 0, True),
    "the window is open": (erase_rows, "take_out", 0, False),
    "the first commit is made, and nobody has noted it": (erase_rows, "take_out", 0, True),
    "a reader is awaited": (erase, "_await", 1, False),
    "the quarantine is done, and its table is not": (erase_rows, "take_out", 1, False),
    "a table is done, and its window is still open": (erase_rows, "take_out", 1, True),
    "an upserted table is to be written": (EraseJob, "_take_rows", 1, False),
    "what was taken out is not noted": (erase_rows, "taken", 0, False),
    "views are not refreshed yet": (EraseJob, "_refresh_views", 0, False),
    "a view is refreshed, and nobody has noted it": (refresh, "refresh_view", 0, True),
    "files are looked for": (scan, "scan", 0, True),
    "a reader of old files is awaited": (erase, "_await", 0, True),
    "the window for files is open": (cleaning, "clean_table", 0, False),
    "the first file is deleted": (cleaning, "_delete", 0, True),
    "a commit is written again, and does not have its name yet": (Path, "rename", 0, False),
    "the control database is not masked yet": (cleaning, "mask_control_database", 0, False),
    "the scan is clean, and nothing is certified": (certificate, "write", 0, False),
    "the certificate is written, and the job goes on": (store, "end", 0, False),
    "the job is over, and the request is still there": (requests, "forget", 0, False),
}


def main() -> None:
    name, topic, number, *moment = sys.argv[1:]
    # As of the embedded broker, nobody erases from its log.
    scan.OF_OTHERS = (*scan.OF_OTHERS, "broker")
    people = People(name, topic)
    if moment:
        _die_at(*MOMENTS[moment[0]])
    erase.resume(int(number), people.catalog)


def _die_at(owner: Any, name: str, calls_before: int, is_done: bool) -> None:
    original, calls = getattr(owner, name), iter(range(calls_before + 1))

    def call(*arguments: Any, **named: Any) -> Any:
        is_now = next(calls, None) == calls_before
        result = original(*arguments, **named) if is_done or not is_now else None
        if is_now:
            os.kill(driver.jvm_pid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, call)


if __name__ == "__main__":
    report(main)
