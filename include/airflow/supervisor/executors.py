"""The supervisor's decisions about the executors of drivers whose bounds `SLUICE_EXECUTORS` declares."""

from sqlalchemy import Engine

from include import logs
from include.catalog import Catalog
from include.control.flows import sizing
from include.control.leases import lease
from include.control.store import database
from include.monitoring import load
from include.settings import settings


def scale_all(engine: Engine, tables: Catalog) -> None:
    """Decide about each declared driver that runs flows. A driver that cannot be judged keeps its size."""
    declared = settings().executors
    sizing.declare(engine, declared)
    if not declared:
        return
    for driver in declared.keys() - tables.drivers().keys():
        logs.warning(f"SLUICE_EXECUTORS names the driver '{driver}', which no flow has: correct it, or take it out")
    with database.reading(engine) as connection:
        held = lease.alive(connection)
    for driver, flows in tables.drivers().items():
        running = [flow for flow in flows if flow.flow in held]
        if driver not in declared or not running:
            continue
        try:
            loads = load.measure(running)
            decision = sizing.settle(engine, driver, declared[driver], settings().catch_up_seconds, loads)
        except Exception as error:
            # Any kind of error: the supervisor has more to do.
            logs.warning(f"the executors of driver '{driver}' stay as they are: {error!r}")
            continue
        if decision:
            logs.info(f"driver '{driver}' is to have {decision.size} executors: {decision.words}")
