"""What the on-call engineer can ask for. All of it lands in the audit; asked for twice, it does no harm."""

from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection, Engine, delete, func, select, update

from include.control import acknowledgements, driver_rows, holds, incidents, lease, orders
from include.control.acknowledgements import Acknowledgement
from include.control.jobs import held_flows, outdated_rows
from include.control.store import database
from include.control.store.schema import audits, desired, drivers, resets, runs, ticks
from include.spec import table_of

# Whoever pastes a command again within this time means the same restart.
REPEAT_SECONDS = 60
ACKNOWLEDGED_HOURS = 24


class Action(StrEnum):
    """restart: end after the batch in hand and start anew, with the table file as it is now.
    stop, start: of a flow with a schedule, follow it or not. drain: read what the source holds now, then stop. catch
    up: the same for a flow that is stopped.
    accept data loss: go on after the records that Kafka no longer holds. reset checkpoint: begin a new generation of
    the checkpoint where the table's last commit ended. release: let VACUUM delete what a stopped flow has yet to read.
    keep old rows: rows that an earlier definition of the table made stay as they are.
    give up: end a backfill or a rewind that died in the middle, and that nobody will end.
    acknowledge: take its alarm on for some hours, in which nobody is told of it again.
    """

    RESTART = "restart"
    STOP = "stop"
    START = "start"
    DRAIN = "drain"
    CATCH_UP = "catch up"
    ACCEPT_DATA_LOSS = "accept data loss"
    RESET_CHECKPOINT = "reset checkpoint"
    RELEASE = "release"
    ACKNOWLEDGE = "acknowledge"
    KEEP_OLD_ROWS = "keep old rows"
    GIVE_UP = "give up"


# These need the approval of a person.
DESTRUCTIVE = frozenset({Action.ACCEPT_DATA_LOSS, Action.RESET_CHECKPOINT, Action.RELEASE, Action.GIVE_UP})


@dataclass(frozen=True)
class Command:
    """driver: restarts the process as a whole; the other actions are meant for each of its `flows`.

    hours: for which an alarm is acknowledged. job: that is given up, "rewind 3" say.
    """

    action: Action
    flows: tuple[str, ...]
    who: str
    reason: str
    driver: str | None = None
    hours: float = ACKNOWLEDGED_HOURS
    job: str | None = None


def execute(engine: Engine, command: Command) -> list[str]:
    """Note what is asked for, for drivers and supervisor to follow; a sentence for each target. Raises Unreachable."""
    with database.transaction(engine) as connection:
        results = carry_out(connection, command)
    return [f"{target}: {result}" for target, result in results.items()]


def carry_out(connection: Connection, command: Command) -> dict[str, str]:
    """The same in a transaction that has begun; by target, what follows."""
    if command.driver and command.action is Action.RESTART:
        results = {f"driver {command.driver}": _restart_driver(connection, command)}
    else:
        orders.lock(connection, command.flows)
        results = {flow: _obey_for(connection, command, flow) for flow in command.flows}
    for target, result in results.items():
        record(connection, command.who, command.action, target, command.reason, result)
    return results


def record(connection: Connection, who: str, action: str, target: str, reason: str, result: str) -> None:
    """One line of the audit."""
    values = {"at": database.now(connection), "who": who, "action": action, "target": target, "reason": reason}
    connection.execute(audits.insert().values(result=result, **values))


def _obey_for(connection: Connection, command: Command, flow: str) -> str:
    said = _obey_later(connection, command, flow)
    return said or _obey_now(connection, command, flow, orders.order(connection, flow).state)


def _obey_later(connection: Connection, command: Command, flow: str) -> str | None:
    """What is noted of a flow that jobs hold still, for when they let it go; None of what can be done at once."""
    if (still := held_flows.still(connection, flow)) is None:
        return None
    jobs, (state, _) = still
    holds_still = f"{' and '.join(jobs)} still {'holds' if len(jobs) == 1 else 'hold'} it"
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
            return f"{holds_still}, and it starts anew when that is done"
        case Action.RESTART | Action.DRAIN | Action.CATCH_UP:
            return f"nothing done, {holds_still}, and it is {state} when that is done"
        case Action.RELEASE:
            return f"nothing done, {holds_still}: ask again when that is done"
        case _:
            return None
    held_flows.want(connection, flow, state, command.reason)
    return f"{holds_still}, and it is {state} when that is done"


def _obey_now(connection: Connection, command: Command, flow: str, state: str) -> str:
    match command.action:
        case Action.RESTART:
            return _restart(connection, command, flow, state)
        case Action.STOP:
            return _stop(connection, command, flow, state)
        case Action.START:
            # Also where it is wanted already: it may be waiting for its next start.
            want(connection, flow, "running", command.reason)
            clear_failure(connection, flow)
            return "is started"
        case Action.CATCH_UP if state == "running":
            return "nothing done, it runs and catches up by itself"
        case Action.DRAIN | Action.CATCH_UP if state == "draining":
            return "nothing done, it reads to the end already"
        case Action.DRAIN if state == "stopped":
            return "nothing done, it is stopped: action catch up reads what has come since"
        case Action.DRAIN | Action.CATCH_UP:
            want(connection, flow, "draining", command.reason)
            clear_failure(connection, flow)
            return "reads what its source holds now, then stops"
        case Action.RELEASE if state != "stopped":
            return "nothing done, it runs: action stop first"
        case Action.RELEASE if flow in lease.alive(connection):
            return "nothing done, it still ends the batch in hand: ask again in a moment"
        case Action.RELEASE:
            holds.release(connection, flow, command.who, command.reason)
            return "VACUUM no longer waits for it, and it has to be rebuilt"
        case Action.KEEP_OLD_ROWS if outdated_rows.forget(connection, flow):
            return "its older rows stay as they are"
        case Action.KEEP_OLD_ROWS:
            return "nothing done, all its rows are of the definition that it has now"
        case Action.ACKNOWLEDGE:
            taken = _acknowledge(connection, command, flow)
            return f"its alarm {taken.state} is {taken}" if taken else "nothing done, it has no alarm"
        case Action.GIVE_UP:
            return "nothing done, a job is given up, and no flow: name the job"
        case _:
            return _reset(connection, command, flow)


def _acknowledge(connection: Connection, command: Command, flow: str) -> Acknowledgement | None:
    """Its own alarm, else that of its table's file."""
    targets = (flow, incidents.of_definition(table_of(flow)))
    asked = (command.who, command.reason, command.hours)
    return next(filter(None, (acknowledgements.acknowledge(connection, target, *asked) for target in targets)), None)


def _stop(connection: Connection, command: Command, flow: str, state: str) -> str:
    # A flow at rest is stopped, too, and this keeps its schedule from starting it.
    rested = connection.execute(delete(ticks).where(ticks.c.flow == flow)).rowcount
    if state == "stopped" and not rested:
        return "nothing done, it is stopped"
    want(connection, flow, "stopped", command.reason)
    return "is started by its schedule no more" if state == "stopped" else "stops after the batch in hand"


def _restart(connection: Connection, command: Command, flow: str, state: str) -> str:
    if state == "stopped":
        return "nothing done, it is stopped: action start"
    repeated = _repeated_seconds_ago(connection, command.action, flow, (flow,))
    if repeated is not None:
        return f"nothing done, that was asked for {repeated:.0f} s ago"
    connection.execute(update(runs).where(runs.c.flow == flow).values(turn=runs.c.turn + 1))
    clear_failure(connection, flow)
    return "restarts after the batch in hand"


def _restart_driver(connection: Connection, command: Command) -> str:
    assert command.driver
    row = driver_rows.lock(connection, command.driver)
    orders.lock(connection, command.flows)
    repeated = _repeated_seconds_ago(connection, command.action, f"driver {command.driver}", command.flows)
    epoch = lease.epoch(connection, lease.of_driver(command.driver))
    if repeated is not None:
        return f"nothing done, that was asked for {repeated:.0f} s ago"
    if not driver_rows.owes_end(row, epoch):
        # Asking again must not give a driver that hangs more time.
        ends = {"ends_epoch": epoch, "ends_at": database.now(connection)}
        connection.execute(update(drivers).where(drivers.c.driver == command.driver).values(ends))
    for flow in command.flows:
        clear_failure(connection, flow)
    return "ends after the batches in hand, and is started again"


def _reset(connection: Connection, command: Command, flow: str) -> str:
    accepts_loss = command.action is Action.ACCEPT_DATA_LOSS
    pending = connection.execute(select(resets.c.accepts_loss).where(resets.c.flow == flow)).scalar_one_or_none()
    if pending is not None and pending >= accepts_loss and not _has_failed(connection, (flow,)):
        return "nothing done, that is asked for already and happens at its next start"
    values = {"flow": flow, "accepts_loss": accepts_loss, "who": command.who, "reason": command.reason}
    statement = database.insert(connection, resets).values(values)
    # Whoever accepts a loss has been shown more than whoever asks for a reset.
    more = statement.on_conflict_do_update(index_elements=["flow"], set_=values, where=~resets.c.accepts_loss)
    connection.execute(more)
    connection.execute(update(runs).where(runs.c.flow == flow).values(turn=runs.c.turn + 1))
    clear_failure(connection, flow)
    return "begins a new generation of its checkpoint at its next start"


def want(connection: Connection, flow: str, state: str, reason: str) -> None:
    """From now on; the caller holds the flow's row."""
    values = {"flow": flow, "state": state, "reason": reason}
    statement = database.insert(connection, desired).values(values)
    connection.execute(statement.on_conflict_do_update(index_elements=["flow"], set_=values))


def clear_failure(connection: Connection, flow: str) -> None:
    """Forget how the flow failed, so that it starts at once; should it fail again, that is news."""
    values = {**orders.AFRESH, "attempts": 0, "intended_at": database.now(connection)}
    incidents.end(connection, flow)
    connection.execute(update(runs).where(runs.c.flow == flow).values(values))


def _repeated_seconds_ago(connection: Connection, action: Action, target: str, flows: tuple[str, ...]) -> float | None:
    """Since the same was asked for a moment ago; whoever asks again after a failure means it."""
    if _has_failed(connection, flows):
        return None
    same = (audits.c.action == action) & (audits.c.target == target) & ~audits.c.result.startswith("nothing done")
    at = connection.execute(select(func.max(audits.c.at)).where(same)).scalar_one_or_none()
    ago = None if at is None else database.now(connection) - at
    return ago if ago is not None and 0 <= ago < REPEAT_SECONDS else None


def _has_failed(connection: Connection, flows: tuple[str, ...]) -> bool:
    failed = select(runs.c.flow).where(runs.c.flow.in_(flows), runs.c.failure.is_not(None))
    return connection.execute(failed).first() is not None
