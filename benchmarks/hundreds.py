"""What supervising hundreds of flows costs: python -m benchmarks.hundreds [--flows N] [--drivers N].

Runs the supervisor in its own process, over flows that do not run but hold leases. Half of them read topics of a
broker, half read tables. Two thirds have a schedule that is due, a tenth has failed. Reports the seconds of
CPU, also of the snapshot, and of the clock, the number of control database statements, and the longest transaction.
"""

import argparse
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from sqlalchemy import Engine, update

from benchmarks import status
from include.control import schedule
from include.control.flows import orders
from include.control.flows.observed_flow import Failure
from include.control.leases import lease
from include.control.leases.process import Holder
from include.control.store import database
from include.control.store.schema import runs, ticks
from include.errors import report
from include.local import java
from include.local.broker import Broker
from include.settings import ROOT, settings
from include.spec import Kafka, Table

COMMITS, UNREAD = 100, 10
PARTITIONS = 3
HOUR_SECONDS = 3_600.0
DAILY = "0 3 * * *"
FAILURE = Failure("column 'bpm' is gone", "DeclarationError", needs_person=True)
# The supervisor over the tables of this benchmark, with counters for the control database.
COMMAND = """
import json, sys, time
began = time.process_time()
from sqlalchemy import event
from benchmarks.hundreds import tables
from include import catalog
from include.catalog import Catalog
from include.control.store import database
from include.airflow.supervisor.reconcile import Seen, publish_all, reconcile_all
from include.monitoring import snapshot
from include.settings import settings
flows, drivers = map(int, sys.argv[1:])
benchmark_tables = Catalog({table.name: table for table in tables(flows, drivers)})
catalog.load = lambda: benchmark_tables
engine, statements, transactions, starts = database.connect(settings().control_url), [], [], []
event.listen(engine, "before_cursor_execute", lambda *_: statements.append(1))
event.listen(engine, "begin", lambda *_: starts.append(time.monotonic()))
for name in ("commit", "rollback"):
    event.listen(engine, name, lambda *_: transactions.append(time.monotonic() - starts[-1]))
loaded = time.process_time()
seen = Seen()
unhealthy = reconcile_all(seen)
settled = time.process_time()
publish_all(seen)
cpu = {"imports": loaded - began, "reconcile": settled - loaded, "publish": time.process_time() - settled}
cpu["of that the snapshot"] = snapshot.newest(engine).platform.took_seconds
figures = {"statements": len(statements), "longest": max(transactions), "unhealthy": len(unhealthy)}
print(json.dumps({**figures, "cpu": cpu}))
"""


@dataclass(frozen=True)
class Run:
    """A supervisor run. longest_seconds: duration of the longest transaction. parts: CPU seconds of each phase."""

    cpu_seconds: float
    wall_seconds: float
    statements: int
    longest_seconds: float
    unhealthy: int
    parts: dict[str, float]

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in self.parts.items())
        return (
            f"{self.cpu_seconds:.2f} s of CPU ({parts}), {self.wall_seconds:.1f} s, {self.statements:,} statements, "
            f"longest transaction {1000 * self.longest_seconds:.0f} ms, {self.unhealthy} unhealthy flows"
        )


def tables(flows: int, drivers: int) -> list[Table]:
    all_tables = status.tables(flows)
    return [
        replace(table, driver=f"driver{number % drivers}", schedule=DAILY if number % 3 else None)
        for number, table in enumerate(all_tables)
    ]


def prepare(engine: Engine, all_tables: list[Table]) -> None:
    """Take the leases for this process, record heartbeats of all flows, and the failure of some."""
    for driver in {table.driver for table in all_tables}:
        flows = [table.flow for table in all_tables if table.driver == driver]
        holder = Holder.here(driver, os.getpid())
        lease.acquire(engine, [lease.driver_lease(driver), *flows], holder, HOUR_SECONDS)
        orders.report_progress(engine, flows)
    orders.fail(engine, [table.flow for table in all_tables[::9]], FAILURE)
    with database.transaction(engine) as connection:
        connection.execute(update(runs).values(intended_at=database.now(connection) - HOUR_SECONDS))
    schedules = {table.flow: table.schedule for table in all_tables}
    schedule.follow(engine, schedules, lambda cron, after: after)


def fall_due(engine: Engine) -> None:
    with database.transaction(engine) as connection:
        connection.execute(update(ticks).values(at=0))


def supervise(flows: int, drivers: int) -> Run:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [sys.executable, "-c", COMMAND, str(flows), str(drivers)]
    process = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    output = json.loads(process.stdout.splitlines()[-1])
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(cpu, wall, output["statements"], output["longest"], output["unhealthy"], output["cpu"])


def feed(address: str, all_tables: list[Table]) -> None:
    """Send a hundred records to each topic."""
    topics = [table.source.names[0] for table in all_tables if isinstance(table.source, Kafka)]
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    for future in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in topics]).values():
        future.result()
    producer = Producer({"bootstrap.servers": address, "log_level": 0})
    for topic in topics:
        for number in range(100):
            producer.produce(topic, b"x" * 100, partition=number % PARTITIONS)
    producer.flush()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hundreds", description=__doc__.splitlines()[0])
    parser.add_argument("--flows", type=int, default=300)
    parser.add_argument("--drivers", type=int, default=10)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as directory:
        home = Path(directory)
        port, jars = free_port(), settings().jars
        os.environ |= {"SLUICE_HOME": directory, "SLUICE_LANDING": "", "SLUICE_KAFKA": f"127.0.0.1:{port}"}
        os.environ |= {"SLUICE_CONTROL_URL": f"sqlite:///{home / 'control.db'}", "AIRFLOW_HOME": directory}
        os.environ["AIRFLOW_CONN_SPARK_DEFAULT"] = json.dumps({"conn_type": "spark", "host": "local[*]"})
        settings.cache_clear()
        all_tables = tables(arguments.flows, arguments.drivers)
        for table in all_tables:
            status.store(table, COMMITS, UNREAD)
        broker = Broker(home / "kafka", jars, java.home(), port, free_port())
        broker.prepare()
        with (home / "broker.log").open("ab") as log:
            process = subprocess.Popen(broker.command(), stdout=log, stderr=subprocess.STDOUT)
        try:
            broker.wait(timeout_seconds=60)
            feed(broker.address, all_tables)
            engine = database.connect(settings().control_url)
            prepare(engine, all_tables)
            title = f"the supervisor over {arguments.flows} flows in {arguments.drivers} drivers"
            fall_due(engine)
            print(f"{title}, all schedules due: {supervise(arguments.flows, arguments.drivers)}")
            print(f"{title}, a minute later: {supervise(arguments.flows, arguments.drivers)}")
        finally:
            process.kill()
            process.wait()


if __name__ == "__main__":
    report(main)
