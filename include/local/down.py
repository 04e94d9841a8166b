"""Stops every process of this platform and no other, also what a crash left behind: `make down`."""

from include.errors import report
from include.local import airflow
from include.local.processes import Platform
from include.local.up import BROKER
from include.settings import settings

GRACE_SECONDS = 10
# A broker that ends cleanly need not check its log at the next start.
BROKER_GRACE_SECONDS = 30


def main() -> None:
    platform = Platform(settings().home)
    # The broker goes last: producer and drivers finish faster while it answers.
    stopped = platform.stop(GRACE_SECONDS, spare=BROKER, first=airflow.SCHEDULER)
    stopped += platform.stop(BROKER_GRACE_SECONDS)
    platform.forget()
    print(f"stopped {stopped} processes of {platform.home}" if stopped else f"nothing of {platform.home} was running")


if __name__ == "__main__":
    report(main)
