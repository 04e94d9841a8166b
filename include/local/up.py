"""Starts all of Sluice on this machine, what runs already excepted: `make up`.

It returns when every flow runs and, where the examples are fed, gold holds rows.
"""

import fcntl
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import psutil
from sqlalchemy import Engine

from include import catalog
from include.cli.status import summary
from include.control.store import database
from include.control.supervision import attendance, shutdown, supervision
from include.errors import SetupError, UsageError, report
from include.local import airflow, artifacts, class_path, environment, install, java, streams
from include.local.airflow import Airflow
from include.local.broker import HOST, Broker, create_topic
from include.local.processes import Platform
from include.monitoring import status
from include.settings import Settings, settings
from include.spec import Files, Kafka

BROKER = "kafka-broker"
SUPERVISOR, WATCHDOG = "supervise", "supervisor-watchdog"
CLASS_DATA = "class-data"
DISK_NEEDED_BYTES = 10**9
ANSWER_SECONDS = 120
GOLD_SECONDS = 300
PARTITIONS = 3
BEGIN = time.monotonic()


def main() -> None:
    where = settings()
    platform = Platform(where.home)
    install.require_disk(where.home, DISK_NEEDED_BYTES)
    with _alone(where.home):
        platform.forget()
        broker_port = _kafka_port(where)
        _require_ports(where, platform, broker_port)
        java_home = java.home()
        variables = environment.of_process(environment.write(where, java_home), java_home)
        kit = Airflow(where, platform, variables)
        broker = Broker(where.home / "kafka", where.jars, java_home, broker_port, broker_port + 1)
        _start(where, platform, kit, broker)
        if not platform.find(WATCHDOG):
            command = [str(install.venv() / "bin" / "python"), "-m", "include.orchestration.watchdog"]
            platform.start(WATCHDOG, command, kit.variables)
        _wait_for_streams(where, platform, kit)
        # Streams do without it, and it starts faster once they have had the processors.
        kit.start(airflow.TRIGGERER)
        if not class_path.archive(where, java_home).exists():
            # For the next start.
            command = [str(install.venv() / "bin" / "python"), "-m", "include.local.class_data"]
            platform.start(CLASS_DATA, command, kit.variables)
    _say_where(where, kit)


def _start(where: Settings, platform: Platform, kit: Airflow, broker: Broker) -> None:
    """Airflow's start takes longest, so everything else happens beside it."""
    migration = kit.begin_migration()
    if artifacts.missing(where.jars):
        _say("fetching the JVM artifacts")
        artifacts.fetch(where.jars, broker.java_home, install.cache() / "ivy")
    if not platform.find(BROKER):
        broker.prepare()
        platform.start(BROKER, broker.command(), kit.variables)
    supervision.heartbeat(database.connect(where.control_url), attendance.STARTER)
    _say("control database ready")
    kit.end_migration(migration)
    kit.start(airflow.API)
    kit.start(airflow.PARSER)
    _say("Airflow starting")
    broker.wait(ANSWER_SECONDS, lambda: platform.require([BROKER]))
    for topic in _topics():
        create_topic(broker.address, topic, PARTITIONS)
    _say(f"Kafka broker answers at {broker.address}")
    for name, module in _feeds().items():
        if not platform.find(name):
            platform.start(name, [str(install.venv() / "bin" / "python"), "-m", module], kit.variables)
            _say(f"the process '{name}' feeds the examples")


def _wait_for_streams(where: Settings, platform: Platform, kit: Airflow) -> None:
    engine = database.connect(where.control_url)
    shutdown.end(engine)
    streams.clear_failures(engine)
    before = streams.launched(engine)

    def check() -> None:
        started = [name for name in airflow.COMMANDS if name in platform.names()]
        platform.require([BROKER, *_feeds(), *started])
        supervision.heartbeat(engine, attendance.STARTER)
        _require_streams(engine, platform, before)

    kit.wait(ANSWER_SECONDS, check)
    _say(f"Airflow answers at {kit.url}")
    kit.trigger(SUPERVISOR, ANSWER_SECONDS, check)
    # Not before: on SQLite its first task and this request would wait for each other in the API server's one loop.
    kit.start(airflow.SCHEDULER)
    _say(f"Airflow runs the DAG '{SUPERVISOR}', which starts the streams")
    empty = list(catalog.load().tables)
    deadline = time.monotonic() + GOLD_SECONDS
    while streams.missing(engine) or (_feeds() and _is_gold_missing(empty)):
        check()
        for table in [table for table in empty if status.rows(table)]:
            empty.remove(table)
            _say(f"{table} holds rows")
        if time.monotonic() > deadline:
            raise SetupError(
                f"{', '.join(streams.missing(engine) or empty)} did not come to life in {GOLD_SECONDS} s: read the "
                f"drivers' logs in {where.logs}, and the runs of '{SUPERVISOR}' at {kit.url}"
            )
        time.sleep(0.5)
    _say("every flow runs, and gold holds rows" if _feeds() else "every flow runs")


def _require_streams(engine: Engine, platform: Platform, before: dict[str, str]) -> None:
    """Raises SetupError where a flow says why it failed, or a driver ended without a word."""
    ends = {name: f"driver '{name}' ended without a word" for name in streams.ended(engine, before)}
    flows, failed = catalog.load().flows, streams.failed(engine)
    ends |= {flows[flow].driver: f"{flow} failed ({reason})" for flow, reason in failed.items() if flow in flows}
    for driver, what in ends.items():
        log = f"driver-{driver}"
        raise SetupError(
            f"{what}: read {platform.log(log)}, mend the cause, then `make up` again; "
            f"it ends with\n{platform.last_lines(log)}"
        )


def _is_gold_missing(empty: list[str]) -> bool:
    gold = [table for table in catalog.load().tables if table.startswith("gold.")]
    return bool(gold) and all(table in empty for table in gold)


def _topics() -> set[str]:
    sources = [flow.source for flow in catalog.load().flows.values()]
    return {name for source in sources if isinstance(source, Kafka) for name in source.names}


def _feeds() -> dict[str, str]:
    """By process, the module that feeds the examples."""
    return dict(import_module(catalog.EXAMPLES).FEEDS) if catalog.has_examples() else {}


def _kafka_port(where: Settings) -> int:
    host, _, port = where.kafka.partition(":")
    if host not in (HOST, "localhost") or not port.isdigit():
        raise UsageError(f"SLUICE_KAFKA is {where.kafka}, and `make up` starts a broker here: set {HOST}:PORT")
    return int(port)


def _require_ports(where: Settings, platform: Platform, broker_port: int) -> None:
    ports = [
        (BROKER, broker_port, f"SLUICE_KAFKA={HOST}:PORT"),
        (BROKER, broker_port + 1, f"SLUICE_KAFKA={HOST}:PORT, whose controller takes PORT + 1"),
        (airflow.API, where.airflow_port, "SLUICE_AIRFLOW_PORT"),
    ]
    for name, port, setting in ports:
        if not platform.find(name) and not _is_free(port):
            raise SetupError(f"port {port} of {name} is taken by {_holder(port)}: stop that, or set {setting}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # A connection that was closed a moment ago does not take the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _holder(port: int) -> str:
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return f"process {connection.pid} ({psutil.Process(connection.pid).name()})"
    except psutil.Error:
        pass
    return "another user's process"


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """One `make up` at a time."""
    (home / "run").mkdir(parents=True, exist_ok=True)
    with (home / "run" / "up.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SetupError(f"another `make up` is at work on {home}: wait for it, or end it") from None
        yield


def _say(what: str) -> None:
    print(f"[{time.monotonic() - BEGIN:6.1f} s] {what}", flush=True)


def _say_where(where: Settings, kit: Airflow) -> None:
    tables = catalog.load().tables
    print(f"\n{summary()}\n" if tables else "")
    for warning in catalog.load().warnings.values():
        print(f"{warning}\n")
    is_empty = not any(status.rows(table) for table in tables)
    if is_empty:
        print("the platform is up; no table holds rows yet\n")
    print(f"Airflow  {kit.url}  user {environment.USER}, password {environment.password(where)}")
    print(f"Tables   {where.lake}")
    print(f"Logs     {where.logs}")
    print(f"By hand  source {where.home / 'env.sh'}")
    if is_empty:
        print(f"First    {_first_step(where)}")
    print("Next     make status, make down", flush=True)


def _first_step(where: Settings) -> str:
    """What brings the first rows, on a platform that has none."""
    sources = [flow.source for flow in catalog.load().flows.values()]
    folders = [where.folder(source.path) for source in sources if isinstance(source, Files)]
    if topics := sorted(_topics()):
        return f"send records to topic {' or '.join(topics)} of the broker at {where.kafka}"
    if folders:
        return f"put files into {' or '.join(folders)}"
    return "make new-table NAME=bronze.orders SOURCE=kafka:orders, and docs/first-table.md"


if __name__ == "__main__":
    try:
        report(main)
    except KeyboardInterrupt:
        print("\nsluice: no longer waiting; what was started goes on until `make down`", file=sys.stderr)
        sys.exit(130)
