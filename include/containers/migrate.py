"""Brings the control database to the schema of this build: python -m include.containers.migrate

It runs as the owner, and gives the three roles of `sluice grants` their rights, if there are these roles.
"""

from include import logs
from include.control.store import database, grants
from include.errors import report
from include.settings import settings


def main() -> None:
    logs.start()
    with database.transaction(database.connect(settings().control_url)) as connection:
        # Also without a migration: somebody may have created the roles since.
        grants.renew(connection)
    logs.info("the control database has the schema of this build")


if __name__ == "__main__":
    report(main)
