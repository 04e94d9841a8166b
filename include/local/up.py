"""Starts all processes of Sluice on this machine that do not run yet: `make up`.

It returns when every flow runs and, with the examples, a gold table holds rows.
"""

import fcntl
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine, select, update

from include import catalog
from include.control import ports as control_ports
from include.control.flows import orders, placements
from include.control.leases import lease
from include.control.leases.process import Process
from include.control.store import database
from include.control.store.schema import drivers, runs
from include.control.supervision import shutdown, supervision, supervisor_presence
from include.errors import SetupError, report
from include.kafka import cluster
from include.local import airflow, artifacts, environment, feeds, home, install, java, object_store, sql_server
from include.local.airflow import Airflow
from include.local.broker import HOST, Broker, create_topics, declared_topics, own_broker
from include.local.processes import Platform, StallTimer
from include.local.status import summary
from include.monitoring import status
from include.progress import Progress, counted
from include.secret_variables import without_airflow, without_secrets
from include.settings import Settings, settings
from include.spec import Files


def clear_failures(engine: Engine) -> None:
    """Clear failures and back-off times: `make up` starts all streams immediately."""
    with database.transaction(engine) as connection:
        connection.execute(update(runs).values(attempts=0, intended_at=None, failure=None, needs_person=False))


def failed_flows(engine: Engine) -> dict[str, str]:
    """By flow, the sentence of its failure, for flows that wait for a retry or for a person."""
    with database.reading(engine) as connection:
        rows = connection.execute(select(runs.c.flow, runs.c.failure).where(runs.c.failure.is_not(None)))
        return {row.flow: row.failure for row in rows}


def missing_flows(engine: Engine) -> list[str]:
    """The flows that should run, but whose lease no living driver holds."""
    with database.reading(engine) as connection:
        active_leases = lease.alive(connection)
        names = catalog.load().flows
        return [
            name for name in names if name not in active_leases and orders.order(connection, name).state == "running"
        ]


def launched(engine: Engine) -> dict[str, str]:
    """By driver, the handle of the process that the supervisor launched last."""
    with database.reading(engine) as connection:
        rows = connection.execute(select(drivers.c.driver, drivers.c.handle).where(drivers.c.handle.is_not(None)))
        return {row.driver: row.handle for row in rows}


def ended_drivers(engine: Engine, earlier_handles: dict[str, str]) -> list[str]:
    """The drivers that have ended although one of their flows should run.

    Only drivers launched after `earlier_handles`, an earlier result of `launched`, are considered.
    """
    tables = placements.place(engine, catalog.load())
    expected = {tables.driver_of(tables.flows[name]) for name in missing_flows(engine)}
    new_handles = {
        driver: handle for driver, handle in launched(engine).items() if handle != earlier_handles.get(driver)
    }
    return sorted(name for name in expected & new_handles.keys() if not Process.from_json(new_handles[name]).is_alive)


BROKER = "kafka-broker"
SUPERVISOR, WATCHDOG = "supervise", "supervisor-watchdog"
CLASS_DATA = "class-data"
DISK_NEEDED_BYTES = 10**9
# A start that does not move for this time has failed.
ANSWER_SECONDS = 120
GOLD_SECONDS = 300
STARTED_AT = time.monotonic()
PROGRESS = Progress(sys.stdout)


def main() -> None:
    """Start all that does not run yet. It returns when every flow runs and, with the examples, gold holds rows."""
    try:
        start()
    except KeyboardInterrupt:
        PROGRESS.clear()
        print("\nsluice: no longer waiting; what was started goes on until `make down`", file=sys.stderr)
        sys.exit(130)
    finally:
        PROGRESS.clear()


def start() -> None:
    config = settings()
    platform = Platform(config.home)
    home.create(config.home)
    install.require_disk(config.home, DISK_NEEDED_BYTES)
    install.write_command()
    with _exclusive_lock(config.home):
        platform.forget()
        java_home = java.home()
        broker = own_broker(config, java_home)
        _require_ports(config, platform, broker)
        object_store.start(config, platform, ANSWER_SECONDS)
        variables = environment.process_environment(environment.write(config, java_home), java_home)
        services = Airflow(config, platform, variables)
        _start(config, platform, services, java_home, broker)
        if not platform.find(WATCHDOG):
            command = [str(install.venv() / "bin" / "python"), "-m", "include.airflow.supervisor.watchdog"]
            platform.start(WATCHDOG, command, services.variables)
        _wait_for_streams(config, platform, services, [BROKER] if broker else [])
        # No stream needs the triggerer, so it starts after the streams have used the processors.
        services.start(airflow.TRIGGERER)
        if sql_server.addresses(config):
            sql_server.start(platform, without_airflow(services.variables))
        if not environment.class_archive(config, java_home).exists():
            _print_progress("the archive of Java's classes is built, for the next start of a driver")
            command = [str(install.venv() / "bin" / "python"), "-m", "include.local.class_data"]
            platform.start(CLASS_DATA, command, without_secrets(services.variables))
        sql_server.wait(config, platform, ANSWER_SECONDS, lambda: _show("the SQL server starts"))
        PROGRESS.clear()
    _print_summary(config, platform, services)


def _start(config: Settings, platform: Platform, services: Airflow, java_home: Path, broker: Broker | None) -> None:
    """Start all processes except the streams. The start of Airflow takes longest, so the others run in parallel."""
    if services.is_outdated:
        _print_progress("the packages have changed, so Airflow brings its database up to date")
    migration = services.begin_migration()
    class_paths = (*artifacts.CLASS_PATHS, *(["s3"] if config.has_s3_lake else []))
    if artifacts.missing(config.jars, class_paths):
        _print_progress("fetching the JVM artifacts")
        artifacts.fetch(config.jars, java_home, install.cache() / "ivy", class_paths, _show)
    if broker and not platform.find(BROKER):
        broker.prepare()
        platform.start(BROKER, broker.command(), without_secrets(services.variables))
    supervision.heartbeat(database.connect(config.control_url), supervisor_presence.STARTER)
    _print_progress("control database ready")
    services.end_migration(migration, lambda: _show("Airflow makes its database"))
    services.start(airflow.API)
    services.start(airflow.PARSER)
    _print_progress("Airflow starting")
    if broker:
        broker.wait(
            *(ANSWER_SECONDS, lambda: _require(platform, [BROKER], "the Kafka broker starts")),
            lambda: platform.logged_bytes(BROKER),
        )
    _print_progress(f"Kafka broker answers at {create_topics(declared_topics())}")
    for name in feeds.start(platform, feeds.modules() | feeds.shop_modules(), without_secrets(services.variables)):
        _print_progress(f"the process '{name}' feeds the examples")


def _wait_for_streams(config: Settings, platform: Platform, services: Airflow, own_processes: list[str]) -> None:
    engine = database.connect(config.control_url)
    shutdown.end(engine)
    clear_failures(engine)
    earlier_handles = launched(engine)

    def check(what: str) -> None:
        started = [name for name in airflow.COMMANDS if name in platform.names()]
        _require(platform, [*own_processes, *feeds.modules(), *started], what)
        supervision.heartbeat(engine, supervisor_presence.STARTER)
        _require_streams(engine, platform, earlier_handles)

    services.wait(ANSWER_SECONDS, lambda: check("Airflow starts"))
    _print_progress(f"Airflow answers at {services.url}")
    services.trigger(SUPERVISOR, ANSWER_SECONDS, lambda: check("Airflow reads the DAGs"))
    # Not earlier: on SQLite, its first task and this request would block each other in the API server's event loop.
    services.start(airflow.SCHEDULER)
    _print_progress(f"Airflow runs the DAG '{SUPERVISOR}', which starts the streams")
    empty_tables = list(catalog.load().tables)
    logs = {f"driver-{flow.driver}" for flow in catalog.load().flows.values()}
    timer = StallTimer(GOLD_SECONDS, lambda: (launched(engine), len(empty_tables), platform.logged_bytes(*logs)))
    while (missing := missing_flows(engine)) or (feeds.modules() and _is_gold_missing(empty_tables)):
        check(_how_far(missing, empty_tables))
        for table in [table for table in empty_tables if status.rows(table)]:
            empty_tables.remove(table)
            _print_progress(f"{table} holds rows")
        if timer.is_over:
            raise SetupError(
                f"{', '.join(missing or empty_tables)} did not come to life, and nothing moves: "
                f"read the drivers' logs in {config.logs}, and the runs of '{SUPERVISOR}' at {services.url}"
            )
        time.sleep(0.5)
    _print_progress("every flow runs, and gold holds rows" if feeds.modules() else "every flow runs")


def _how_far(missing: list[str], empty_tables: list[str]) -> str:
    """How many flows run, or tables hold rows, and which comes next."""
    if missing:
        total = len(catalog.load().flows)
        return f"{counted(total - len(missing), total, 'flows run')}; next {missing[0]}"
    total = len(catalog.load().tables)
    return f"{counted(total - len(empty_tables), total, 'tables hold rows')}; next {empty_tables[0]}"


def _require(platform: Platform, names: list[str], what: str) -> None:
    """Say what the start waits for. Raises SetupError if one of the processes has died."""
    _show(what)
    platform.require(names)


def _require_streams(engine: Engine, platform: Platform, earlier_handles: dict[str, str]) -> None:
    """Raises SetupError if a flow has failed, or if a driver has ended without a message."""
    failures = {name: f"driver '{name}' ended without a word" for name in ended_drivers(engine, earlier_handles)}
    tables, failed = placements.place(engine, catalog.load()), failed_flows(engine)
    failures |= {
        tables.driver_of(tables.flows[flow]): f"{flow} failed ({reason})"
        for flow, reason in failed.items()
        if flow in tables.flows
    }
    for driver, failure in failures.items():
        log = f"driver-{driver}"
        raise SetupError(
            f"{failure}: read {platform.log(log)}, fix the cause, then `make up` again; "
            f"it ends with\n{platform.last_lines(log)}"
        )


def _is_gold_missing(empty_tables: list[str]) -> bool:
    gold = [table for table in catalog.load().tables if table.startswith("gold.")]
    return bool(gold) and all(table in empty_tables for table in gold)


def _require_ports(config: Settings, platform: Platform, broker: Broker | None) -> None:
    ports = [(airflow.API, config.airflow_port, "SLUICE_AIRFLOW_PORT")]
    ports += [(sql_server.NAME, port, setting) for setting, port in sql_server.ports(config).items()]
    if config.s3_port:
        ports.append((object_store.NAME, config.s3_port, "SLUICE_S3_PORT"))
    if broker:
        remedy = f"SLUICE_KAFKA={HOST}:PORT"
        ports.append((BROKER, broker.port, remedy))
        ports.append((BROKER, broker.controller_port, f"{remedy}, whose controller takes PORT + 1"))
    for name, port, setting in ports:
        if not platform.find(name):
            control_ports.require_free(HOST, port, name, setting)


@contextmanager
def _exclusive_lock(directory: Path) -> Iterator[None]:
    """Prevent two concurrent runs of `make up`."""
    (directory / "run").mkdir(parents=True, exist_ok=True)
    with (directory / "run" / "up.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SetupError(f"another `make up` is at work on {directory}: wait for it, or end it") from None
        yield


def _print_progress(message: str) -> None:
    PROGRESS.clear()
    print(f"{_elapsed()} {message}", flush=True)


def _show(message: str) -> None:
    PROGRESS.show(f"{_elapsed()} {message}")


def _elapsed() -> str:
    return f"[{time.monotonic() - STARTED_AT:6.1f} s]"


def _print_summary(config: Settings, platform: Platform, services: Airflow) -> None:
    tables = catalog.load().tables
    print(f"\n{summary()}\n" if tables else "")
    for notice in [*catalog.load().notices, *feeds.notices(platform)]:
        print(f"{notice}\n")
    is_empty = not any(status.rows(table) for table in tables)
    if is_empty:
        print("the platform is up; no table holds rows yet\n")
    print(f"Airflow  {services.url}  user {environment.USER}, password {environment.password(config)}")
    print(f"Tables   {config.lake}")
    print(f"Logs     {config.logs}")
    for address in sql_server.addresses(config):
        print(f"SQL      {address}")
    print(f"Shell    source {config.home / 'env.sh'}")
    if is_empty:
        print(f"First    {_first_step(config)}")
    print(f"Next     {install.command_words()} status, make down", flush=True)


def _first_step(config: Settings) -> str:
    """The advice how to load the first rows."""
    flows = catalog.load().flows.values()
    folders = [config.folder(flow.source_as(Files).path) for flow in flows if flow.source.reads_files]
    if topics := sorted(declared_topics()):
        return f"send records to topic {' or '.join(topics)} of the broker at {cluster.named(None)}"
    if folders:
        return f"put files into {' or '.join(folders)}"
    return "make new-table NAME=bronze.orders SOURCE=kafka:orders, and docs/start/first-table.md"


if __name__ == "__main__":
    report(main)
