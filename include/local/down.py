"""Stops all processes of this platform, including those that a crash left behind: `make down`."""

import sys

from include.control.store import database
from include.control.supervision import shutdown
from include.errors import SluiceError, report
from include.local import airflow, object_store
from include.local.processes import Platform
from include.local.up import BROKER
from include.settings import settings

GRACE_SECONDS = 10
# After a clean stop, the broker need not recover its log at the next start.
SERVICE_GRACE_SECONDS = 30


def main() -> None:
    """Stop all processes of this platform, including those that a crash left behind."""
    platform = Platform(settings().home)
    _record_shutdown(platform)
    # Broker and store stop last, because producers and drivers end faster while these answer.
    stopped = platform.stop(GRACE_SECONDS, spare=(BROKER, object_store.NAME), first=airflow.SCHEDULER)
    stopped += platform.stop(SERVICE_GRACE_SECONDS)
    platform.forget()
    print(f"stopped {stopped} processes of {platform.home}" if stopped else f"nothing of {platform.home} was running")


def _record_shutdown(platform: Platform) -> None:
    """Record the shutdown, so that stopped processes do not count as failures. An error does not stop `make down`."""
    if not (pids := {process.pid for process in platform.processes()}):
        return
    try:
        shutdown.begin(database.connect(settings().control_url), pids)
    except SluiceError as error:
        print(f"sluice: `status` will not know that this was on purpose: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    report(main)
