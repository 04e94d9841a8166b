"""Brings what runs to what is wanted: one look at every driver, for a few seconds."""

from sqlalchemy import Engine

from include import catalog
from include.catalog import Catalog
from include.control import acknowledgements, definitions, incidents, schedule
from include.control.decide import State
from include.control.definitions import INVALID_DEFINITION
from include.control.store import database
from include.control.supervision import shutdown, supervision
from include.control.supervision.supervision import SourceHealth
from include.monitoring import progress_table
from include.orchestration import cron, notify, source_health
from include.orchestration.launchers import launch
from include.orchestration.launchers.launch import Launcher
from include.orchestration.launchers.liveness import Liveness
from include.settings import settings
from include.spec import Table

# A process takes more than a second to load Airflow, and who reads needs the first few names and one list.
MOST_TASKS = 10


def reconcile_all() -> list[dict[str, str]]:
    """Start, wait, back off or end, for each driver. Returns the sick flows, each with its reason in words.

    A driver that cannot be launched leaves the others alone, as does a table file that cannot be used. Raises
    UsageError where the Spark connection is missing, and Unreachable.
    """
    engine = database.connect(settings().control_url)
    # Whoever started this supervisor without `make up` wants the streams, too.
    shutdown.end(engine, older_than_seconds=shutdown.LONGEST_SECONDS)
    tables = catalog.load()
    schedules = {flow: table.schedule for flow, table in tables.flows.items()}
    for flow, asked in schedule.follow(engine, schedules, cron.next_tick).items():
        print(f"{flow}: by its schedule, it {asked}")
    place = launch.launcher()
    outlooks = source_health.look(engine, tables)
    sick = _settle_definitions(engine, tables) + _settle_promises(engine, tables, outlooks)
    handles = supervision.handles(engine)
    liveness = Liveness(handles, place)
    for driver, flows in tables.drivers().items():
        try:
            dead = handles[driver] if driver in handles and not liveness.is_alive(driver) else None
            sick += _settle(engine, place, driver, flows, outlooks, handles.get(driver), dead)
        except Exception as error:
            print(f"driver '{driver}': {error}")
            sick += [{"flow": table.flow, "reason": f"its driver cannot be started: {error}"} for table in flows]
    supervision.heartbeat(engine)
    notify.tell_all(engine)
    _gather()
    return sick


def tasks_of(sick: list[dict[str, str]]) -> list[dict[str, str]]:
    """One red task for each sick flow, by its name, and one that lists the rest: each task is a process."""
    if len(sick) <= MOST_TASKS:
        return sick
    rest = sick[MOST_TASKS - 1 :]
    listed = "\n".join(f"{one['flow']}: {one['reason']}" for one in rest)
    return [*sick[: MOST_TASKS - 1], {"flow": f"{len(rest)} more flows", "reason": f"\n{listed}"}]


def _gather() -> None:
    """Last, and of whatever kind an error is: no flow is sick by it, and what drivers wrote down waits where it is."""
    try:
        print(f"query progress: {progress_table.gather() or 0} reports gathered")
    except Exception as error:
        print(f"query progress is not gathered for now: {error}")


def _settle_definitions(engine: Engine, tables: Catalog) -> list[dict[str, str]]:
    """The table files that are not used."""
    acknowledged = definitions.settle(engine, tables)
    for table, words in tables.warnings.items():
        print(f"{table}: {INVALID_DEFINITION}: {words}. {acknowledged[table] or ''}")
    return [
        {"flow": table, "reason": f"{INVALID_DEFINITION}: {words}. Next: docs/runbooks/invalid-definition.md"}
        for table, words in tables.warnings.items()
        if not acknowledged[table]
    ]


def _settle_promises(engine: Engine, tables: Catalog, outlooks: dict[str, SourceHealth]) -> list[dict[str, str]]:
    """The alarms of tables that no supervised flow writes, such as views."""
    supervised = {flow.name for flows in tables.drivers().values() for flow in flows}
    others = tables.tables.keys() - supervised
    broken = {table: words for table in others if (words := outlooks.get(table, SourceHealth()).not_fresh)}
    with database.transaction(engine) as connection:
        sick = {table: (State.NOT_FRESH, words, "") for table, words in broken.items()}
        incidents.settle(connection, sick, others - sick.keys())
        acknowledged = acknowledgements.current(connection)
    for table, words in broken.items():
        print(f"{table}: {State.NOT_FRESH}: {words}. {acknowledged.get(table, '')}")
    return [
        {"flow": table, "reason": f"{State.NOT_FRESH}: {words}. Next: docs/runbooks/not-fresh.md"}
        for table, words in broken.items()
        if table not in acknowledged
    ]


def _settle(
    engine: Engine,
    place: Launcher,
    driver: str,
    flows: list[Table],
    outlooks: dict[str, SourceHealth],
    handle: str | None,
    dead: str | None,
) -> list[dict[str, str]]:
    settled = supervision.settle(engine, driver, [table.flow for table in flows], dead, outlooks)
    if settled.kill:
        if settled.holder:
            settled.holder.fence()
        if handle:
            launch.of(handle, place).kill(handle)
        print(f"driver '{driver}' did not end when it was asked to, and was ended by force")
    if settled.launch_since:
        handle = place.launch(driver)
        supervision.record_launch(engine, driver, handle, settled.launch_since)
        print(f"driver '{driver}' launched, it writes to {place.log(driver, handle)}")
    sick = []
    for flow, decision in settled.decisions.items():
        print(f"{flow}: {decision.state}: {decision.reason}")
        if flow in settled.acknowledged:
            print(f"{flow}: {settled.acknowledged[flow]}")
        elif decision.is_sick:
            reason = f"{decision.state}: {decision.reason}. Next: {decision.next_step}"
            sick.append({"flow": flow, "reason": reason})
    return sick
