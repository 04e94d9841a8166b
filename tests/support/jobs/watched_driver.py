"""A driver with UI and full log: python -m tests.support.jobs.watched_driver NAME TOPIC PORT CLUSTER...

It hosts a flow for each cluster, which reads the topic into `bronze.<NAME>_<CLUSTER>`. PORT: of the UI.
"""

import sys

from include import catalog
from include.catalog import Catalog
from include.engine import session
from include.engine.sources import kafka_reader
from include.engine.stream import driver
from include.errors import report
from include.settings import settings
from include.spec import Flow, Kafka, Table


def tables_of(name: str, topic: str, clusters: list[str]) -> dict[str, Table]:
    tables = [
        Flow(name=f"bronze.{name}_{cluster}", comment="", source=Kafka(topic, cluster=cluster)) for cluster in clusters
    ]
    return {table.name: table for table in tables}


def main() -> None:
    name, topic, port, *clusters = sys.argv[1:]
    tables = tables_of(name, topic, clusters)
    catalog.load = catalog.reload = lambda: Catalog(tables)
    events = settings().home / "events"
    events.mkdir()
    session.CONF |= {
        "spark.ui.enabled": "true",
        "spark.ui.port": port,
        # Its pages show all that it has run, not the last ten queries.
        "spark.sql.ui.retainedExecutions": "1000",
        "spark.ui.retainedJobs": "1000",
        "spark.ui.retainedStages": "1000",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file://{events}",
    }
    open_session = driver.open_session

    def open_and_tell(*arguments):
        spark = open_session(*arguments)
        spark.sparkContext.setLogLevel("INFO")
        first_table = next(iter(tables.values()))
        rows = kafka_reader.records_from(spark, first_table.source, {topic: {0: 0}})
        print(rows._jdf.queryExecution().toString(), rows.collect(), flush=True)
        return spark

    driver.open_session = open_and_tell
    driver.run(list(tables.values()), driver="watched")


if __name__ == "__main__":
    report(main)
