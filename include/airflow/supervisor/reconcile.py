"""One run of the supervisor: it compares all drivers with what is wanted, and acts, within a few seconds.

Afterwards, it stores a snapshot for pages and exporters, and publishes the progress of flows: Kafka consumer groups get
offsets, OpenLineage an event for each newest batch, and the catalog of other engines the names of tables.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

from airflow.sdk import timezone
from airflow.timetables.base import DataInterval, TimeRestriction
from airflow.timetables.trigger import CronTriggerTimetable
from sqlalchemy import Engine

from include import catalog, logs
from include.airflow.launchers import launch
from include.airflow.launchers.launch import Launcher, Processes
from include.airflow.supervisor import executors, kafka_connections, notify, source_health
from include.catalog import Catalog
from include.control import definitions, pending_work, schedule
from include.control.definitions import INVALID_DEFINITION
from include.control.flows import alarms, incidents, placements
from include.control.flows.alarms import AlarmKind
from include.control.flows.decide import Decision, State, driver_cause
from include.control.flows.incidents import Finding
from include.control.store import database
from include.control.store.job_id import JobId
from include.control.supervision import shutdown, supervision
from include.control.supervision.supervision import SourceHealth
from include.delta.table_logs import TableLogs
from include.errors import SluiceError
from include.kafka import broker
from include.monitoring import consumer_groups, lag, lineage_loader, query_progress, registration, take_snapshot
from include.monitoring.lag import Measured
from include.monitoring.registration import State as NameState
from include.settings import settings
from include.spec import Flow, table_of

# Each task is a process that needs more than a second to load Airflow; a reader needs a few names and one list.
MOST_TASKS = 10


@dataclass
class Seen:
    """What one run has seen, so that nobody asks for it again. decisions: by supervised flow."""

    decisions: dict[str, Decision] = field(default_factory=dict)
    measured: Measured | None = None

    @property
    def table_logs(self) -> TableLogs:
        return self.measured.sources.logs if self.measured else TableLogs()


def reconcile_all(seen: Seen | None = None) -> list[dict[str, str]]:
    """Start, wait, back off or kill, for each driver. Returns the unhealthy flows, each with its reason in words.

    A driver that cannot be launched, or an invalid table file, does not affect the others. seen: gets what the run
    sees. Raises UsageError if the Spark connection is missing, and Unreachable.
    """
    engine = database.connect(settings().control_url)
    # A supervisor that runs long after `make down` was started without `make up`, and ends the shutdown.
    shutdown.end(engine, older_than_seconds=shutdown.LONGEST_SECONDS)
    tables = placements.place(engine, catalog.load())
    schedules = {flow: table.cron for flow, table in tables.flows.items()}
    for flow, result in schedule.follow(engine, schedules, next_tick).items():
        logs.info(f"by its schedule, it {result}", flow)
    kafka_connections.store(tables)
    launcher = launch.launcher()
    seen = seen or Seen()
    seen.measured = lag.look(tables.readers.values(), broker.TIMEOUT_SECONDS)
    health = _with_causes(engine, tables, source_health.look(engine, tables, seen.measured))
    unhealthy = _settle_definitions(engine, tables) + _settle_promises(engine, tables, health)
    unhealthy += _settle_jobs(engine)
    # A driver that is launched now begins with the executors that it is to have.
    executors.scale_all(engine, tables)
    processes = Processes(supervision.handles(engine), launcher)
    for driver, flows in tables.drivers().items():
        try:
            unhealthy += _settle(engine, launcher, processes, driver, flows, health, seen)
        except Exception as error:
            logs.error(f"driver '{driver}': {error}")
            reason, cause = f"its driver cannot be started: {error}", driver_cause(driver)
            unhealthy += [{"flow": table.flow, "reason": reason, "cause": cause} for table in flows]
    supervision.heartbeat(engine)
    # Before what may take long: messages, and a look at all tables.
    _try(lambda: _renew_verdicts(engine, tables, seen))
    notify.notify_all(engine)
    return unhealthy


def to_task_arguments(unhealthy: list[dict[str, str]]) -> list[dict[str, str]]:
    """One red task for each cause, named by its flow; beyond `MOST_TASKS`, the last one lists the rest."""
    groups: dict[str, list[dict[str, str]]] = {}
    for flow in unhealthy:
        groups.setdefault(flow.get("cause") or flow["flow"], []).append(flow)
    tasks = [_to_task(cause, group) for cause, group in groups.items()]
    if len(tasks) <= MOST_TASKS:
        return tasks
    rest = tasks[MOST_TASKS - 1 :]
    return [*tasks[: MOST_TASKS - 1], {"flow": f"{len(rest)} more flows", "reason": f"\n{_to_lines(rest)}"}]


def _to_task(cause: str, group: list[dict[str, str]]) -> dict[str, str]:
    if len(group) == 1:
        return {"flow": group[0]["flow"], "reason": group[0]["reason"]}
    return {"flow": f"{cause}: {len(group)} flows", "reason": f"\n{_to_lines(group)}"}


def _to_lines(flows: list[dict[str, str]]) -> str:
    return "\n".join(f"{flow['flow']}: {flow['reason']}" for flow in flows)


def _with_causes(engine: Engine, tables: Catalog, health: dict[str, SourceHealth]) -> dict[str, SourceHealth]:
    """Names the trouble above each table that is not fresh, so that one cause is one message."""
    late = [name for name, seen in health.items() if seen.not_fresh]
    if not late:
        return health
    with database.reading(engine) as connection:
        above = [incident for incident in incidents.all_open(connection) if incident.state in incidents.OF_RUN]
    causes: dict[str, str] = {}
    for incident in above:
        source = table_of(incident.subject)
        below = tables.below(source) if source in tables.tables else []
        for table in (source, *(table.name for table in below)):
            causes.setdefault(table, incident.cause)
    return health | {
        name: replace(health[name], late_by=causes[table_of(name)]) for name in late if table_of(name) in causes
    }


def _settle_jobs(engine: Engine) -> list[dict[str, str]]:
    """Settle the alarms of jobs that failed or died and that nobody does. Returns them as unhealthy flows."""
    with database.transaction(engine) as connection:
        failed = {str(JobId(job.kind, job.root)): job for job in pending_work.failed_jobs(connection)}
        targets = {AlarmKind.JOB_FAILED.target(name): name for name in failed}
        for name, job in failed.items():
            reason = f"{job.table}: {job.failure or f'it died while {job.state}'}"
            incidents.begin(connection, name, AlarmKind.JOB_FAILED, reason, cause=AlarmKind.JOB_FAILED.target(name))
        for target in incidents.targets_in_state(connection, AlarmKind.JOB_FAILED) - targets.keys():
            incidents.end(connection, target)
        acknowledged = incidents.valid_acknowledgements(connection)
    return [
        {
            "flow": name,
            "reason": f"{AlarmKind.JOB_FAILED}: {failed[name].failure or 'it died'}. "
            f"Next: {alarms.runbook(AlarmKind.JOB_FAILED)}",
            "cause": target,
        }
        for target, name in targets.items()
        if target not in acknowledged
    ]


def _gather() -> None:
    """Store query progress. It ignores every error: the drivers' journals are kept until the next run."""
    try:
        logs.info(f"query progress: {query_progress.gather() or 0} reports gathered")
    except Exception as error:
        logs.warning(f"query progress is not gathered for now: {error}")


def _settle_definitions(engine: Engine, tables: Catalog) -> list[dict[str, str]]:
    """Returns the invalid table files as unhealthy flows."""
    acknowledged = definitions.settle(engine, tables)
    for table, reason in tables.warnings.items():
        logs.warning(f"{INVALID_DEFINITION}: {reason}. {acknowledged[table] or ''}", table)
    return [
        {"flow": table, "reason": f"{INVALID_DEFINITION}: {reason}. Next: {alarms.runbook(INVALID_DEFINITION)}"}
        for table, reason in tables.warnings.items()
        if not acknowledged[table]
    ]


def _settle_promises(engine: Engine, tables: Catalog, health: dict[str, SourceHealth]) -> list[dict[str, str]]:
    """Settle the alarms of tables that no supervised flow writes, such as views. Returns them as unhealthy flows."""
    supervised = {flow.name for flows in tables.drivers().values() for flow in flows}
    others = tables.tables.keys() - supervised
    broken = {table: reason for table in others if (reason := health.get(table, SourceHealth()).not_fresh)}
    with database.transaction(engine) as connection:
        unhealthy = {
            table: Finding(State.NOT_FRESH, reason, cause=health[table].late_by) for table, reason in broken.items()
        }
        incidents.settle(connection, unhealthy, others - unhealthy.keys())
        acknowledged = incidents.valid_acknowledgements(connection)
    for table, reason in broken.items():
        logs.warning(f"{State.NOT_FRESH}: {reason}. {acknowledged.get(table, '')}", table)
    return [
        {
            "flow": table,
            "reason": f"{State.NOT_FRESH}: {reason}. Next: {alarms.runbook(State.NOT_FRESH)}",
            "cause": health[table].late_by,
        }
        for table, reason in broken.items()
        if table not in acknowledged
    ]


def _settle(
    engine: Engine,
    launcher: Launcher,
    processes: Processes,
    driver: str,
    flows: list[Flow],
    health: dict[str, SourceHealth],
    seen: Seen,
) -> list[dict[str, str]]:
    dead_handle = processes.dead_handle(driver)
    settlement = supervision.settle(engine, driver, [table.flow for table in flows], dead_handle, health)
    seen.decisions.update(settlement.decisions)
    if settlement.kill:
        if settlement.holder:
            settlement.holder.fence()
        processes.kill(driver)
        logs.warning(f"driver '{driver}' did not end when it was asked to, and was killed")
    if settlement.launch_since:
        if dead_handle is None:
            processes.end_predecessor(driver)
        handle = launcher.launch(driver)
        log = launcher.log(driver, handle)
        supervision.record_launch(engine, driver, handle, settlement.launch_since, log)
        logs.info(f"driver '{driver}' launched, it writes to {log}")
    unhealthy = []
    for flow, decision in settlement.decisions.items():
        logs.info(f"{decision.state}: {decision.reason}", flow)
        if flow in settlement.acknowledged:
            logs.info(settlement.acknowledged[flow], flow)
        elif decision.is_unhealthy:
            reason = f"{decision.state}: {decision.reason}. Next: {decision.next_step}"
            unhealthy.append({"flow": flow, "reason": reason, "cause": decision.cause})
    return unhealthy


def publish_all(seen: Seen | None = None) -> None:
    """Publish everything, and log failures. The next minute tries again. seen: by `reconcile_all`. Raises nothing."""
    seen = seen or Seen()
    # The snapshot has the batches of the last minute from the journals, which are gathered last.
    store_snapshot, publish_lineage = partial(_store_snapshot, seen), partial(_publish_lineage, seen)
    for publish in (store_snapshot, _publish_offsets, publish_lineage, _publish_names, _gather):
        _try(publish)


def _try(publish: Callable[[], None]) -> None:
    try:
        publish()
    except SluiceError as error:
        logs.warning(error)
    except Exception as error:
        # No error here may stop the supervisor.
        logs.error(error, traceback=True)


def _renew_verdicts(engine: Engine, tables: Catalog, seen: Seen) -> None:
    if take_snapshot.renew_verdicts(engine, tables, seen.decisions):
        logs.info("pages show what has changed")


def _store_snapshot(seen: Seen) -> None:
    engine = database.connect(settings().control_url)
    taken = take_snapshot.take(engine, catalog.load(), seen.decisions, seen.measured)
    for part, reason in taken.platform.unknown.items():
        logs.warning(f"{part}: unknown in the snapshot: {reason}")


def _publish_offsets() -> None:
    for mirrored in consumer_groups.mirror(catalog.load()).values():
        if mirrored.refusal:
            logs.warning(f"{mirrored.group} is not mirrored: {mirrored.refusal}")


def _publish_lineage(seen: Seen) -> None:
    for flow, batch in lineage_loader.emit_events(catalog.load(), logs=seen.table_logs).items():
        logs.info(f"lineage of batch {batch}", flow)


def _publish_names() -> None:
    if settings().catalog_prefix is None:
        return
    for table, entry in registration.register(catalog.load()).items():
        if entry.done:
            logs.info(f"entry {entry.name} of the catalog {entry.done}", table)
        elif entry.state == NameState.REFUSED:
            logs.warning(entry.reason, table)


def next_tick(schedule: str, after: float) -> float:
    """The first time of a cron expression after `after`, both in seconds since 1970; infinite if there is none."""
    interval = DataInterval.exact(timezone.coerce_datetime(datetime.fromtimestamp(after, UTC)))
    restriction = TimeRestriction(earliest=None, latest=None, catchup=True)
    timetable = CronTriggerTimetable(schedule, timezone="UTC")
    try:
        run_info = timetable.next_dagrun_info(last_automated_data_interval=interval, restriction=restriction)
    except ValueError:
        # Such as the 30th of February.
        return math.inf
    return math.inf if run_info is None else run_info.run_after.timestamp()
