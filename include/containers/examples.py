"""Feeds the example tables, where they are declared: python -m include.containers.examples

It runs the processes that `make up` starts for them, until SIGTERM, or until one of them ends.
"""

import contextlib
import signal
import subprocess
import sys
import time

from include import logs
from include.errors import SluiceError, report
from include.local import feeds

CHECK_SECONDS, STOP_SECONDS = 1, 8


def main() -> None:
    logs.start()
    signal.signal(signal.SIGTERM, lambda _signal, _frame: sys.exit(0))
    modules = feeds.modules() | feeds.shop_modules()
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, module in modules.items():
            processes[name] = subprocess.Popen([sys.executable, "-m", module])
        while processes:
            require(processes)
            time.sleep(CHECK_SECONDS)
    finally:
        stop(processes)


def require(processes: dict[str, subprocess.Popen[bytes]]) -> None:
    """Raises SluiceError if one of them has ended."""
    for name, process in processes.items():
        if process.poll() is not None:
            raise SluiceError(f"'{name}' ended with code {process.returncode}: read its lines above; all start again")


def stop(processes: dict[str, subprocess.Popen[bytes]]) -> None:
    """End them: those that use the others first."""
    for process in reversed(processes.values()):
        process.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    for process in processes.values():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(deadline - time.monotonic(), 0))


if __name__ == "__main__":
    report(main)
