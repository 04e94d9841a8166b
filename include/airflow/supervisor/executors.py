"""The supervisor's decisions about the executors of drivers whose bounds `SLUICE_EXECUTORS` declares.

With `SLUICE_REBALANCE`, also about flows that move from one of these drivers to another one.
"""

from collections.abc import Mapping

from sqlalchemy import Engine

from include import logs
from include.catalog import Catalog
from include.control import commands
from include.control.commands import Action, Command
from include.control.flows import placements, sizing
from include.control.flows.rebalance import rebalance
from include.control.flows.scale import QUIET_SECONDS, Decision
from include.control.leases import lease
from include.control.store import database
from include.monitoring import load
from include.settings import settings

# A flow that was moved stays for so long, whoever has moved it.
STAYS_SECONDS = 86_400


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
    decisions: dict[str, Decision] = {}
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
            decisions[driver] = decision
            logs.info(f"driver '{driver}' is to have {decision.size} executors: {decision.words}")
    if settings().rebalance:
        try:
            _move_flow(engine, tables, decisions)
        except Exception as error:
            logs.warning(f"no flow moves to another driver: {error!r}")


def _move_flow(engine: Engine, tables: Catalog, decisions: Mapping[str, Decision]) -> None:
    """Move the flow that `rebalance` names, if any. One that is not where its table declares it stays there."""
    with database.reading(engine) as connection:
        moved = placements.moved_seconds_ago(connection, STAYS_SECONDS)
    if any(seconds <= QUIET_SECONDS for seconds in moved.values()):
        # What was decided before is about other flows of these drivers.
        return
    move = rebalance(decisions, tables.flows.keys() - tables.placements.keys() - moved.keys())
    if move is None:
        return
    numbers = {driver: sizing.decisions(engine, driver, 1)[0].number for driver in (move.driver, move.to)}
    sizing.keep(engine, numbers.values())
    reason = (
        f"driver '{move.driver}' lacks executors, and driver '{move.to}' has room for its {move.need:.1f}: "
        f"decisions {numbers[move.driver]} and {numbers[move.to]}"
    )
    command = Command(Action.MOVE, (move.flow,), sizing.REQUESTER, reason, to=move.to)
    for line in commands.execute(engine, command):
        logs.info(f"{line}, because {reason}")
