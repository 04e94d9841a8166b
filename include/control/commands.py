"""The commands of the on-call engineer. Each is written to the audit, and repeating one is harmless."""

from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection, Engine, delete, func, select, update

from include import access, catalog
from include.control import skips, vacuum_holds
from include.control.flows import incidents, orders, placements
from include.control.flows.alarms import AlarmKind
from include.control.flows.incidents import Acknowledgement
from include.control.jobs import held_flows, stale_rows
from include.control.leases import lease
from include.control.skips import BatchToSkip
from include.control.store import audit, database
from include.control.store.schema import audits, drivers, resets, runs, ticks
from include.spec import table_of

# A restart repeated within this time is the same restart.
REPEAT_SECONDS = 60
ACKNOWLEDGED_HOURS = 24


class Action(StrEnum):
    """restart: end after the current batch and restart, with the table file as it is then. stop, start: for a flow
    with a schedule, whether the schedule applies. drain: read what the source holds now, then stop. catch up: the same
    for a stopped flow. accept data loss: resume after the records that Kafka no longer holds. reset checkpoint: begin a
    new generation of the checkpoint at the table's last commit. skip: leave out the batch that is planned. release: let
    VACUUM delete what a stopped flow has not read. keep old rows: do not recompute rows of an earlier definition. give
    up: end a backfill or rewind that died and that nobody will complete. acknowledge: send no notification of the alarm
    for some hours. move: end in its driver after the current batch, and go on in another one.
    """

    RESTART = "restart"
    STOP = "stop"
    START = "start"
    DRAIN = "drain"
    CATCH_UP = "catch up"
    ACCEPT_DATA_LOSS = "accept data loss"
    RESET_CHECKPOINT = "reset checkpoint"
    SKIP = "skip"
    RELEASE = "release"
    ACKNOWLEDGE = "acknowledge"
    KEEP_OLD_ROWS = "keep old rows"
    GIVE_UP = "give up"
    MOVE = "move"


# Actions that a person has to approve.
DESTRUCTIVE = frozenset(map(Action, access.APPROVED_ACTIONS))


@dataclass(frozen=True)
class Command:
    """driver: restarts the whole process; the other actions apply to each of `flows`. hours: how long an alarm is
    acknowledged. job: the job to give up, such as "rewind 3". planned: the batch to skip. approver: of a destructive
    action. to: the driver that flows move to.
    """

    action: Action
    flows: tuple[str, ...]
    who: str
    reason: str
    driver: str | None = None
    hours: float = ACKNOWLEDGED_HOURS
    job: str | None = None
    planned: BatchToSkip | None = None
    approver: str | None = None
    to: str | None = None

    @property
    def persons(self) -> str:
        """Who asked for it and who approved it, in words."""
        return f"{self.who}, approved by {self.approver}" if self.approver else self.who


@dataclass(frozen=True)
class Result:
    """What a command did to one target, in words. has_effect: it changed what is wanted or known of the target."""

    message: str
    has_effect: bool = True

    def __str__(self) -> str:
        return self.message


def _nothing(reason: str) -> Result:
    return Result(f"nothing done, {reason}", has_effect=False)


def execute(engine: Engine, command: Command) -> list[str]:
    """Store a command for drivers and supervisor to follow. Returns a sentence for each target. Raises Unreachable."""
    with database.transaction(engine) as connection:
        results = execute_in(connection, command)
    return [f"{target}: {result}" for target, result in results.items()]


def execute_in(connection: Connection, command: Command) -> dict[str, Result]:
    """Execute a command in an open transaction. Returns the result by target."""
    if command.driver and command.action is Action.RESTART:
        results = {f"driver {command.driver}": _restart_driver(connection, command)}
    else:
        if command.action is not Action.ACKNOWLEDGE:
            orders.lock(connection, command.flows)
        results = {flow: _execute_for(connection, command, flow) for flow in command.flows}
    for target, result in results.items():
        words = command.action, target, command.reason, result.message
        audit.record(connection, command.who, *words, result.has_effect, command.approver)
    return results


def _execute_for(connection: Connection, command: Command, flow: str) -> Result:
    deferred = _defer(connection, command, flow)
    return deferred or _execute_now(connection, command, flow, orders.order(connection, flow).state)


def _defer(connection: Connection, command: Command, flow: str) -> Result | None:
    """Store the command in the jobs that keep the flow stopped, for when they end; None if it can be executed now."""
    if (held := held_flows.holding_jobs(connection, flow)) is None:
        return None
    jobs, (state, _) = held
    holds_still = f"{' and '.join(map(str, jobs))} still {'holds' if len(jobs) == 1 else 'hold'} it"
    match command.action:
        case Action.STOP:
            connection.execute(delete(ticks).where(ticks.c.flow == flow))
            state = "stopped"
        case Action.START:
            state = "running"
        case Action.DRAIN if state == "running":
            state = "draining"
        case Action.CATCH_UP if state == "stopped":
            state = "draining"
        case Action.RESTART if state != "stopped":
            return Result(f"{holds_still}, and it restarts when that is done")
        case Action.RESTART | Action.DRAIN | Action.CATCH_UP:
            return _nothing(f"{holds_still}, and it is {state} when that is done")
        case Action.RELEASE:
            return _nothing(f"{holds_still}: ask again when that is done")
        case _:
            return None
    held_flows.defer_state(connection, flow, state, command.reason)
    return Result(f"{holds_still}, and it is {state} when that is done")


def _execute_now(connection: Connection, command: Command, flow: str, state: str) -> Result:
    match command.action:
        case Action.RESTART:
            return _restart(connection, command, flow, state)
        case Action.STOP:
            return _stop(connection, command, flow, state)
        case Action.START:
            # Also if it is running already: it may be backing off.
            orders.set_wanted(connection, flow, "running", command.reason)
            orders.clear_failure(connection, flow)
            return Result("is started")
        case Action.CATCH_UP if state == "running":
            return _nothing("it runs and catches up by itself")
        case Action.DRAIN | Action.CATCH_UP if state == "draining":
            return _nothing("it reads to the end already")
        case Action.DRAIN if state == "stopped":
            return _nothing("it is stopped: action catch up reads what has come since")
        case Action.DRAIN | Action.CATCH_UP:
            orders.set_wanted(connection, flow, "draining", command.reason)
            orders.clear_failure(connection, flow)
            return Result("reads what its source holds now, then stops")
        case Action.RELEASE if state != "stopped":
            return _nothing("it runs: action stop first")
        case Action.RELEASE if flow in lease.alive(connection):
            return _nothing("it still ends the current batch: ask again in a moment")
        case Action.RELEASE:
            vacuum_holds.release(connection, flow, command.persons, command.reason)
            return Result("VACUUM no longer waits for it, and it has to be rebuilt")
        case Action.KEEP_OLD_ROWS if stale_rows.keep_rows(connection, flow):
            return Result("its older rows stay as they are")
        case Action.KEEP_OLD_ROWS:
            return _nothing("all its rows are of the definition that it has now")
        case Action.ACKNOWLEDGE:
            ack = _acknowledge(connection, command, flow)
            return Result(f"its alarm {ack.state} is {ack}") if ack else _nothing("it has no alarm")
        case Action.GIVE_UP:
            return _nothing("a job is given up, and no flow: name the job")
        case Action.SKIP:
            return _skip(connection, command, flow)
        case Action.MOVE:
            return _move(connection, command, flow)
        case _:
            return _reset(connection, command, flow)


def _acknowledge(connection: Connection, command: Command, flow: str) -> Acknowledgement | None:
    """Acknowledge the flow's alarm, or else an alarm of its table."""
    of_table = (AlarmKind.INVALID_DEFINITION, AlarmKind.WINDOW_FAILED, AlarmKind.HELD_BACK, AlarmKind.COPIES_LEFT)
    targets = (flow, *(kind.target(table_of(flow)) for kind in of_table))
    details = (command.who, command.reason, command.hours)
    return next(filter(None, (incidents.acknowledge(connection, target, *details) for target in targets)), None)


def _stop(connection: Connection, command: Command, flow: str, state: str) -> Result:
    # A flow that rests between scheduled runs is stopped too: without its tick the schedule no longer starts it.
    rests = connection.execute(delete(ticks).where(ticks.c.flow == flow)).rowcount
    if state == "stopped" and not rests:
        return _nothing("it is stopped")
    orders.set_wanted(connection, flow, "stopped", command.reason)
    return Result("is started by its schedule no more" if state == "stopped" else "stops after the current batch")


def _restart(connection: Connection, command: Command, flow: str, state: str) -> Result:
    if state == "stopped":
        return _nothing("it is stopped: action start")
    repeated = _repeated_seconds_ago(connection, command.action, flow, (flow,))
    if repeated is not None:
        return _nothing(f"that was asked for {repeated:.0f} s ago")
    orders.restart(connection, flow)
    return Result("restarts after the current batch")


def _restart_driver(connection: Connection, command: Command) -> Result:
    assert command.driver
    row = orders.lock_driver(connection, command.driver)
    orders.lock(connection, command.flows)
    repeated = _repeated_seconds_ago(connection, command.action, f"driver {command.driver}", command.flows)
    epoch = lease.epoch(connection, lease.driver_lease(command.driver))
    if repeated is not None:
        return _nothing(f"that was asked for {repeated:.0f} s ago")
    if not orders.is_restart_due(row, epoch):
        # A repeated request must not give a hanging driver more time.
        values = {"ends_epoch": epoch, "ends_at": database.now(connection)}
        connection.execute(update(drivers).where(drivers.c.driver == command.driver).values(values))
    for flow in command.flows:
        orders.clear_failure(connection, flow)
    return Result("ends after the current batches, and is started again")


def _move(connection: Connection, command: Command, flow: str) -> Result:
    if command.to is None:
        return _nothing("it moves to no driver: name one")
    tables = catalog.load()
    declared, moved = tables.flow(flow), placements.read(connection)
    driver = moved.get(flow, declared.driver)
    if declared.merges_in_windows:
        return _nothing("its rows are merged in windows, and no driver runs it")
    if driver == command.to:
        return _nothing(f"it belongs to driver '{driver}'")
    is_known = command.to in moved.values() or command.to in tables.drivers()
    placements.move(connection, declared, command.to)
    if _has_failed(connection, (flow,)):
        orders.clear_failure(connection, flow)
    name = f"driver '{command.to}'{'' if is_known else ', which is a new one'}"
    return Result(f"ends in driver '{driver}' after the current batch, and goes on in {name}")


def _skip(connection: Connection, command: Command, flow: str) -> Result:
    if command.planned is None:
        return _nothing("no batch of it is planned")
    what = f"batch {command.planned.batch} of generation {command.planned.generation}"
    if not skips.approve(connection, flow, command.planned, command.persons, command.reason):
        return _nothing(f"{what} is left out already")
    orders.restart(connection, flow)
    return Result(f"leaves out {what}, which reads {command.planned.reads}")


def _reset(connection: Connection, command: Command, flow: str) -> Result:
    accepts_loss = command.action is Action.ACCEPT_DATA_LOSS
    pending = connection.execute(select(resets.c.accepts_loss).where(resets.c.flow == flow)).scalar_one_or_none()
    if pending is not None and pending >= accepts_loss and not _has_failed(connection, (flow,)):
        return _nothing("that is asked for already and happens at its next start")
    persons = {"who": command.who, "approver": command.approver}
    values = {"flow": flow, "accepts_loss": accepts_loss, **persons, "reason": command.reason}
    statement = database.insert(connection, resets).values(values)
    # A plain reset must not replace a reset that accepts a data loss, which has shown the loss to the approver.
    upsert = statement.on_conflict_do_update(index_elements=["flow"], set_=values, where=~resets.c.accepts_loss)
    connection.execute(upsert)
    orders.restart(connection, flow)
    return Result("begins a new generation of its checkpoint at its next start")


def _repeated_seconds_ago(connection: Connection, action: Action, target: str, flows: tuple[str, ...]) -> float | None:
    """Since the same command was given a moment ago. After a failure, a command is never a repetition."""
    if _has_failed(connection, flows):
        return None
    is_same = (audits.c.action == action) & (audits.c.target == target) & audits.c.has_effect.is_not(False)
    at = connection.execute(select(func.max(audits.c.at)).where(is_same)).scalar_one_or_none()
    seconds_ago = None if at is None else database.now(connection) - at
    return seconds_ago if seconds_ago is not None and 0 <= seconds_ago < REPEAT_SECONDS else None


def _has_failed(connection: Connection, flows: tuple[str, ...]) -> bool:
    failed = select(runs.c.flow).where(runs.c.flow.in_(flows), runs.c.failure.is_not(None))
    return connection.execute(failed).first() is not None
