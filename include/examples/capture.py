"""Sends each change of the shop's database to Kafka, until SIGTERM.

python -m include.examples.capture
"""

import os

from include.errors import report
from include.examples import SHOP_TOPICS, database
from include.local import artifacts, connect, connector, install, java
from include.settings import settings

SLOT = "shop"
# The streams start first. Nobody waits for the connector.
NICENESS = 10


def main() -> None:
    os.nice(NICENESS)
    connector.begin()
    config = settings()
    artifacts.fetch(config.jars, java.home(), install.cache() / "ivy", [connect.CLASS_PATH])
    connection = database.wait()
    topics = {f"public.{table}": topic for table, topic in SHOP_TOPICS.items()}
    connector.require(connection, topics, SLOT)
    connector.send_changes(connection, topics, SLOT)


if __name__ == "__main__":
    report(main)
