"""Sends the rows of PostgreSQL tables to Kafka, and then each change of them, until SIGTERM or Ctrl+C.

python -m include.local.connector --database "host=... dbname=billing" --table purchases --topic billing.purchases

It runs Debezium's connector in Kafka Connect, for a trial; `make connect` fetches both. The database needs
`wal_level=logical`. A change may be sent repeatedly, for example after a kill, but none is left out. What was sent is
noted below SLUICE_HOME, in connect/SLOT. Each --table needs its --topic, in the same order.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from types import FrameType

import psycopg

from include import logs
from include.control.ports import free_port
from include.errors import FlowFailed, SetupError, Unreachable, UsageError, report
from include.kafka import cluster
from include.local import java
from include.local.broker import PARTITIONS
from include.local.connect import HOST, JSON, RUNNING, Worker
from include.settings import settings

PASSWORD = "SLUICE_CONNECTOR_PASSWORD"
CHECK_SECONDS = 1
STOP_SECONDS = 30
# Where the connector of earlier releases noted which slots had sent all rows.
SNAPSHOTS = "sluice_snapshots"
# All properties: https://debezium.io/documentation/reference/3.6/connectors/postgresql.html
DEBEZIUM = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "plugin.name": "pgoutput",
    "publication.autocreate.mode": "filtered",
    "decimal.handling.mode": "string",
    # By default, truncates are left out.
    "skipped.operations": "none",
    "key.converter": JSON,
    "key.converter.schemas.enable": "false",
    "value.converter": JSON,
    "value.converter.schemas.enable": "false",
    # By default, a NULL becomes the default value of its column.
    "value.converter.replace.null.with.default": "false",
    # By default, a place before that of the slot ends the connector, and a kill can leave one (see `keep_offsets`). The
    # slot moves behind what Kafka has stored.
    "offset.mismatch.strategy": "trust_greater_lsn",
    "poll.interval.ms": "100",
    # Of a topic that does not exist. -1: as the brokers choose.
    "topic.creation.default.partitions": str(PARTITIONS),
    "topic.creation.default.replication.factor": "-1",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", required=True, help="connection string of PostgreSQL")
    table_help = "table of the database, by default in the schema public; repeatable"
    parser.add_argument("--table", action="append", required=True, help=table_help)
    parser.add_argument("--topic", action="append", required=True, help="it is created unless it exists")
    parser.add_argument("--cluster", help="name of the Kafka cluster; without it, the cluster of SLUICE_KAFKA")
    parser.add_argument("--slot", default="sluice", help="replication slot and publication, default sluice")
    parser.add_argument(
        "--property",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a property of Debezium's connector, repeatable, such as time.precision.mode=isostring",
    )
    arguments = parser.parse_args()
    properties = dict(entry.split("=", 1) for entry in arguments.property if "=" in entry)
    if len(properties) < len(arguments.property):
        raise UsageError(f"--property {arguments.property}: write each as NAME=VALUE, and each name once")
    if len(arguments.table) != len(arguments.topic):
        raise UsageError(f"--table {arguments.table}, --topic {arguments.topic}: name a topic for each table")
    topics = {_with_schema(table): topic for table, topic in zip(arguments.table, arguments.topic, strict=True)}
    if len(topics) < len(arguments.table):
        raise UsageError(f"--table {arguments.table}: name each table once")
    begin()
    with connect(arguments.database) as connection:
        require(connection, topics, arguments.slot)
        send_changes(connection, topics, arguments.slot, arguments.cluster, properties)


def begin() -> None:
    """Let this process write a log, and end its worker with it."""
    logs.start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit)


def send_changes(
    connection: psycopg.Connection,
    topics: Mapping[str, str],
    slot: str,
    cluster_name: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> None:
    """Send the rows of these tables, and then each change, until this process ends. Raises the errors of `run`.

    topics: by table, with its schema. The connection is closed.
    """
    configuration = {**debezium(connection, topics, slot), **(properties or {})}
    password = connection.info.password
    connection.close()
    worker = Worker(
        directory=settings().home / "connect" / slot,
        jars=settings().jars,
        java_home=java.home(),
        kafka=cluster.named(cluster_name),
        port=free_port(HOST),
        connectors={slot: configuration},
    )
    ways = ", ".join(f"{table} to topic {topic}" for table, topic in topics.items())
    run(worker, {PASSWORD: password}, f"sends the changes of {ways}, until Ctrl+C")


def connect(database: str) -> psycopg.Connection:
    """Connects to a database. Raises Unreachable."""
    try:
        return psycopg.connect(database, autocommit=True, connect_timeout=10)
    except psycopg.Error as error:
        reason = str(error).strip().splitlines()[-1]
        raise Unreachable(f"--database does not answer ({reason}): correct it, or start the database") from error


def require(connection: psycopg.Connection, topics: Mapping[str, str], slot: str, patience_seconds: float = 10) -> None:
    """Raises UsageError or SetupError if the database lacks what the connector needs.

    topics: by table, with its schema. patience_seconds: how long the database may take to notice that the last
    connector ended.
    """
    if connection.execute("SHOW wal_level").fetchone() != ("logical",):
        raise SetupError("the database keeps no changes for a connector: set wal_level=logical, and restart it")
    for table in topics:
        if connection.execute("SELECT to_regclass(%s)", [table]).fetchone() == (None,):
            raise UsageError(f"--table is {table}, which the database has not: correct it, or create the table")
    deadline = time.monotonic() + patience_seconds
    while connection.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND active", [slot]).fetchone():
        if time.monotonic() > deadline:
            raise SetupError(f"--slot is {slot}, which another connector uses: stop that one, or name another slot")
        time.sleep(CHECK_SECONDS)
    is_earlier = connection.execute("SELECT to_regclass(%s)", [SNAPSHOTS]).fetchone() != (None,)
    if is_earlier and connection.execute(f"SELECT 1 FROM {SNAPSHOTS} WHERE slot = %s", [slot]).fetchone():
        # Debezium does not begin where that one stopped. It would leave out what was deleted in between.
        raise UsageError(
            f"--slot is {slot}, which the connector of an earlier release used: send to a new --topic with another "
            f"--slot, and remove the earlier one: SELECT pg_drop_replication_slot('{slot}'); DROP TABLE {SNAPSHOTS}"
        )


def debezium(connection: psycopg.Connection, topics: Mapping[str, str], slot: str) -> dict[str, str]:
    """Returns the configuration of the connector. It names the password's environment variable, and not the password.

    topics: by table, with its schema. slot: also the name of the publication.
    """
    info = connection.info
    configuration = {
        **DEBEZIUM,
        "database.hostname": info.host,
        "database.port": str(info.port),
        "database.dbname": info.dbname,
        "database.user": info.user,
        "database.password": f"${{env:{PASSWORD}}}",
        "database.sslmode": info.get_parameters().get("sslmode", "prefer"),
        "table.include.list": ",".join(map(re.escape, topics)),
        "slot.name": slot,
        "publication.name": slot,
        # By default, the name of a topic consists of prefix, schema and table.
        "topic.prefix": slot,
    }
    routes = {f"route{number}": route for number, route in enumerate(topics.items())}
    configuration["transforms"] = ",".join(routes)
    for name, (table, topic) in routes.items():
        configuration |= {
            f"transforms.{name}.type": "org.apache.kafka.connect.transforms.RegexRouter",
            f"transforms.{name}.regex": re.escape(f"{slot}.{table}"),
            f"transforms.{name}.replacement": topic,
        }
    return configuration


def run(worker: Worker, variables: Mapping[str, str], greeting: str) -> None:
    """Run the worker until this process ends. Raises FlowFailed if it ends before, or one of its connectors fails.

    variables: environment variables that its connectors need. greeting: what to print when they run.
    """
    worker.prepare()
    process = subprocess.Popen(worker.command(), cwd=worker.directory, env={**os.environ, **variables})
    try:
        is_greeted = False
        while process.poll() is None:
            states = worker.states()
            if failures := [state for state in states.values() if state != RUNNING]:
                raise FlowFailed(f"the connector failed: fix the cause, and start it again\n{failures[0]}")
            if states.keys() == worker.connectors.keys() and not is_greeted:
                logs.info(greeting)
                is_greeted = True
            worker.keep_offsets()
            time.sleep(CHECK_SECONDS)
        raise FlowFailed("Kafka Connect ended: read above what it wrote")
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


def _with_schema(table: str) -> str:
    return table if "." in table else f"public.{table}"


def _exit(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(0)


if __name__ == "__main__":
    report(main)
