"""Brings the control database to the schema of this build: python -m include.containers.migrate"""

from include import logs
from include.control.store import database
from include.errors import report
from include.settings import settings


def main() -> None:
    logs.start()
    database.connect(settings().control_url)
    logs.info("the control database has the schema of this build")


if __name__ == "__main__":
    report(main)
