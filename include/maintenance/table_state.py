"""What there is to be done to a table now: its own plan, and that of its quarantine, from their logs."""

import math
import time
from dataclasses import dataclass

from sqlalchemy import Engine

from include.catalog import Catalog
from include.control import holds, orders
from include.control.jobs.windows import Shape
from include.control.store import database
from include.maintenance import plan as planning
from include.maintenance import plan_clustered, policy, vacuum_guard
from include.maintenance.plan import GOOD_SHARE, MB, OPTIMIZE, Facts, MaintenancePlan, Step
from include.maintenance.policy import Place
from include.maintenance.vacuum_guard import Consumer
from include.readers import checkpoint
from include.readers.delta_log import Log, Tombstone
from include.settings import settings
from include.spec import Delta, Table

# A hold that lasts longer than the promise is rounded up, so that it does not change with every window.
ROUND_SECONDS = 3600


@dataclass(frozen=True)
class Survey:
    """One stored table. plan: of its windows. compaction: wherever that is done.

    retention_seconds: what VACUUM has to be told. held: who keeps it from more. log_needed_from: the oldest version the
    log has to hold.
    """

    name: str
    log: Log
    plan: MaintenancePlan
    compaction: Step
    retention_seconds: float
    held: Consumer
    log_needed_from: int
    shape: Shape
    policy: str

    def lines(self) -> list[str]:
        """For people: each step, whether it is worth it, and why; then who holds VACUUM back."""
        steps = [f"{'' if step.is_worth_it else 'not '}worth it, {step.kind}: {step.why}" for step in self.plan.steps]
        kept = f"VACUUM keeps what was deleted in the last {self.retention_seconds:,.0f} s"
        held = f"the oldest version needed is {self.held.version}, by {self.held.name}"
        return [f"{self.name}: {line}" for line in (*steps, self.policy, f"{kept}; {held}")]

    def would_delete(self, now: float) -> list[Tombstone]:
        """The files a VACUUM would delete now."""
        return vacuum_guard.would_vacuum(self.log, self.retention_seconds, now)


def look(engine: Engine, table: Table, tables: Catalog) -> list[Survey]:
    """The table's, and its quarantine's where there is one; none before anything is stored. Raises Broken."""
    stored = [name for name in (table.name, table.quarantine) if settings().is_stored(name)]
    return [_look(engine, table, tables, name, time.time()) for name in stored]


def is_worth_it(engine: Engine, table: Table, surveys: list[Survey]) -> bool:
    """Whether a window has something to do."""
    return any(found.plan.is_worth_it for found in surveys) or (not surveys and _merges(engine, table))


def why(surveys: list[Survey]) -> str:
    """What is worth doing, or why nothing is, in one line for the calendar."""
    steps = [(survey.name, step) for survey in surveys for step in survey.plan.steps]
    worth = [f"{step.kind} {name}: {step.why}" for name, step in steps if step.is_worth_it]
    if not surveys:
        return "the table is not stored yet"
    return "; ".join(worth) or "nothing is worth it: " + "; ".join(step.why for _, step in steps)


def _look(engine: Engine, table: Table, tables: Catalog, name: str, now: float) -> Survey:
    log = Log(settings().table_path(name))
    readers = vacuum_guard.readers(tables, name)
    registered = [Consumer(*one) for one in holds.registered(engine, name)]
    promise = table.maintain.time_travel_hours
    own = [flow.flow for flow in table.flows] if name == table.name else []
    consumers = vacuum_guard.consumers(own, log, readers, promise, now, registered, holds.released(engine))
    # The promise itself is kept by the retention.
    others = [one for one in consumers if not one.name.startswith(vacuum_guard.PROMISE)]
    kept_since = vacuum_guard.files_kept_since(log, others, now)
    retention_seconds = _retention(table.maintain.retention_seconds, kept_since, now)
    held = vacuum_guard.held_by(consumers)
    assert held, "the promised time travel is one of them"
    needed_from = vacuum_guard.log_needed_from(log, consumers)
    facts = Facts(
        live=log.state.live,
        dead=vacuum_guard.dead_files(log),
        now=now,
        kept_since=now - retention_seconds,
        held_by=held.name,
        removable_log_files=len(vacuum_guard.removable_log_files(log, needed_from)),
        unread_versions=_unread(table) if name == table.name and _merges(engine, table) else 0,
        seconds_since_compaction=_seconds_since_compaction(log, now),
    )
    plan = plan_clustered.plan(facts, table) if name == table.name else planning.plan(facts, table.maintain)
    place, reason = policy.place_of_compaction(table, settings().store)
    is_inline = place is Place.INLINE and name == table.name
    return Survey(
        name,
        log,
        plan=_without_compaction(plan, reason) if is_inline else plan,
        compaction=plan.step(OPTIMIZE),
        retention_seconds=retention_seconds,
        held=held,
        log_needed_from=needed_from,
        shape=shape(log, GOOD_SHARE * table.maintain.target_file_mb * MB),
        policy=f"compacted {place}: {reason}",
    )


def _without_compaction(plan: MaintenancePlan, reason: str) -> MaintenancePlan:
    """Of the windows, where somebody else compacts."""
    compaction = plan.step(OPTIMIZE)
    elsewhere = Step(OPTIMIZE, False, f"{reason}; {compaction.why}")
    return MaintenancePlan(tuple(elsewhere if step is compaction else step for step in plan.steps))


def shape(log: Log, good_bytes: float) -> Shape:
    """The newest version in numbers."""
    live = log.state.live
    rows = sum(file.rows for file in live if file.rows is not None)
    is_counted = all(file.rows is not None for file in live)
    small = sum(file.bytes < good_bytes for file in live)
    return Shape(log.newest, len(live), sum(file.bytes for file in live), small, rows if is_counted else None)


def _retention(least_seconds: float, kept_since: float | None, now: float) -> float:
    """kept_since: what was removed since then must not be deleted, also not if VACUUM runs some time after `now`."""
    if kept_since is None or now + vacuum_guard.WINDOW_SECONDS - kept_since <= least_seconds:
        return least_seconds
    return math.ceil((now + vacuum_guard.WINDOW_SECONDS - kept_since) / ROUND_SECONDS) * ROUND_SECONDS


def _merges(engine: Engine, table: Table) -> bool:
    """Whether its windows merge, and nobody has stopped its flow."""
    with database.reading(engine) as connection:
        return table.merges_in_windows and orders.order(connection, table.flow).state != "stopped"


def _unread(table: Table) -> int:
    """Versions of its source that its flow has not merged yet."""
    assert isinstance(table.source, Delta)
    newest = Log(settings().table_path(table.source.table)).newest
    checkpoints = settings().checkpoints(table.flow)
    generation = checkpoint.newest_generation(checkpoints)
    done = None if generation is None else checkpoint.last_committed(checkpoints / str(generation))
    if done is None:
        return newest + 1
    return newest - checkpoint.read_version(checkpoint.end_offset(checkpoints / str(generation), done))


def _seconds_since_compaction(log: Log, now: float) -> float | None:
    found = next((commit for commit in log.commits() if commit.operation == "OPTIMIZE"), None)
    return None if found is None else now - found.timestamp
