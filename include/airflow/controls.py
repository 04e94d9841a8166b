"""The form of `control.stream`: its validation, its effect in words, and its execution."""

from dataclasses import replace
from typing import Any, NoReturn

from airflow.sdk import Param
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from sqlalchemy import Engine

from include import catalog
from include.airflow.approvals import evaluate_approval
from include.airflow.forms import TEXT, checked
from include.checkpoints import checkpoint_files
from include.control import commands
from include.control.commands import ACKNOWLEDGED_HOURS, DESTRUCTIVE, Action, Command
from include.control.flows import placements
from include.control.flows.incidents import LONGEST_HOURS
from include.control.skips import BatchToSkip
from include.control.store import audit, database
from include.errors import LeaseHeld, SluiceError, UsageError
from include.flows import resume_position
from include.lake import locations
from include.project.declaration import DRIVER
from include.recovery import giving_up, reset
from include.recovery.giving_up import Leftovers
from include.settings import settings

FLOWS, DRIVERS, VIEWS = list(catalog.load().flows), list(catalog.load().drivers()), list(catalog.load().views)
FORM = {
    "flow": Param(None, type=["null", "string"], enum=[None, *FLOWS, *VIEWS], description="a flow, or else a driver"),
    "driver": Param(None, type=["null", "string"], enum=[None, *DRIVERS], description="all flows of one Spark process"),
    "job": Param(
        None,
        type=["null", "string"],
        maxLength=60,
        description="to give up: rewind 3, or backfill 7, as the ledger says",
    ),
    "action": Param(type="string", enum=[str(action) for action in Action]),
    "to": Param(None, type=["null", "string"], pattern=f"^{DRIVER.pattern}$", description="driver to move to"),
    "reason": Param(**TEXT, description="for whoever reads the audit"),
    "hours": Param(
        ACKNOWLEDGED_HOURS,
        type="number",
        exclusiveMinimum=0,
        maximum=LONGEST_HOURS,
        description="how long an alarm is acknowledged",
    ),
}


def command(form: dict[str, Any], requester: str | None) -> Command:
    """The command of a form. Raises AirflowFailException if it is invalid."""
    form = checked(form, FORM)
    flow, driver, action = form["flow"], form["driver"], Action(form["action"])
    job = form.get("job")
    if (job is None) == (action is Action.GIVE_UP) or (job and (flow or driver)):
        raise AirflowFailException(f"job is {job!r} and action {action}: give up is for a job alone, and nothing else")
    if job:
        return Command(action, (), requester or "unknown", form["reason"], job=job)
    to = form.get("to")
    if (to is None) == (action is Action.MOVE):
        raise AirflowFailException(f"to is {to!r} and action {action}: move needs a driver there")
    if (flow is None) == (driver is None):
        raise AirflowFailException(f"flow is {flow!r} and driver is {driver!r}: name exactly one of them")
    if driver and action in DESTRUCTIVE:
        raise AirflowFailException(f"driver is '{driver}', and action {action} is for one flow: name the flow instead")
    if flow in VIEWS and action is not Action.ACKNOWLEDGE:
        raise AirflowFailException(
            f"flow is '{flow}', a materialized view, which has no stream for action {action}: trigger `refresh` for it"
        )
    if action is Action.ACCEPT_DATA_LOSS and not catalog.load().flow(flow).source.reads_topics:
        raise AirflowFailException(
            f"flow is '{flow}', which reads no Kafka topic, so none of its records can have expired: "
            f"name the bronze flow that lost them, or take action reset checkpoint"
        )
    if action is Action.RELEASE and not catalog.load().flow(flow).source.reads_table:
        raise AirflowFailException(
            f"flow is '{flow}', which reads no table, so no VACUUM waits for it: name the flow that `plan` names"
        )
    flows = (flow,) if flow else _flows_of(driver)
    return Command(action, flows, requester or "unknown", form["reason"], driver, form["hours"], to=to)


def _flows_of(driver: str) -> tuple[str, ...]:
    """The flows that the driver runs now."""
    tables = placements.place(database.connect(settings().control_url), catalog.load())
    return tuple(table.flow for table in tables.drivers().get(driver, ()))


def approved_state(request: Command) -> int | list[str]:
    """The state that must not change between request and approval."""
    if request.action is Action.SKIP:
        return _planned(request).lines
    return _remains(request).lines if request.job else generation(*request.flows)


def _planned(request: Command) -> BatchToSkip:
    try:
        return reset.planned(catalog.load().flow(*request.flows))
    except SluiceError as error:
        raise AirflowFailException(str(error)) from error


def _remains(request: Command) -> Leftovers:
    assert request.job
    try:
        return giving_up.plan(database.connect(settings().control_url), catalog.load(), request.job)
    except UsageError as error:
        raise AirflowFailException(str(error)) from error


def generation(flow: str) -> int:
    """The newest generation of the flow's checkpoint; 0 before the first one."""
    return checkpoint_files.newest_generation(locations.checkpoints(flow)) or 0


def describe_effect(request: Command) -> str:
    """The effect of an approval, in Markdown."""
    if request.job:
        lines = [f"- {line}" for line in _remains(request).lines]
        lines = [f"**{request.job}** is given up, which leaves this behind:", "", *lines]
        return "\n".join([*lines, "", f"Asked for by {request.who}: {request.reason}"])
    (flow,) = request.flows
    if request.action is Action.SKIP:
        return _skip(flow, request)
    current = generation(flow)
    source = catalog.load().flow(flow).source
    if request.action is Action.RELEASE:
        return _release(flow, source.table or "its source", request)
    start = "where the last commit of its table ended. No row of the table is touched."
    if current and not _holds_rows_of(flow):
        start = "with all that its source still holds: no batch is in the table. **What is gone there is lost.**"
    lines = [
        f"**{flow}** ends after the current batch. Generation {current} of its checkpoint is kept and no longer used; "
        f"generation {current + 1} begins {start}"
    ]
    if request.action is Action.ACCEPT_DATA_LOSS and source.reads_topics:
        lines.append(
            f"**Records of {source} that Kafka no longer holds stay missing**, in {flow} and in every table that reads "
            f"it, for good. The lost ranges are recorded in the control database. Where a topic was deleted and "
            f"recreated, reading begins at its start."
        )
    lines.append(f"Asked for by {request.who}: {request.reason}")
    return "\n\n".join(lines)


def _holds_rows_of(flow: str) -> bool:
    table = catalog.load().flow(flow)
    return locations.is_stored(table.name) and resume_position.last_commit_metadata(table) is not None


def _skip(flow: str, request: Command) -> str:
    planned = _planned(request)
    return (
        f"**{flow}** leaves out batch {planned.batch} of generation {planned.generation}, which reads "
        f"**{planned.reads}**. What lies there **stays missing**, in its table and in every table that reads it, until "
        f"a backfill brings it. Its source keeps it. The commit of the batch names who approved that, and `verify` "
        f"counts it.\n\nAsked for by {request.who}: {request.reason}"
    )


def _release(flow: str, name: str, request: Command) -> str:
    return (
        f"VACUUM of **{name}** no longer waits for **{flow}**, and may delete what that flow has yet to read. The flow "
        f"then cannot go on: its table has to be moved away, and rebuilt from what {name} holds by then.\n\n"
        f"Asked for by {request.who}: {request.reason}"
    )


def run_command(
    engine: Engine, request: Command, approved: int | list[str] | None, answer: dict[str, Any] | None
) -> list[str]:
    """Execute the command. Returns the result for each target.

    approved: `approved_state` at the time of the request. answer: of the approver.

    Raises AirflowSkipException if it is not executed, so that the following tasks are skipped.
    """
    if request.action not in DESTRUCTIVE:
        return commands.execute(engine, request)
    decision = evaluate_approval(answer, request.who)
    if not decision.is_approved:
        _refuse(engine, request, decision.message)
    why = f"{request.reason}; {decision.by}: {decision.reason}" if decision.reason else request.reason
    request = replace(request, approver=decision.by, reason=why)
    if request.job:
        return [_give_up(engine, request, approved)]
    (flow,) = request.flows
    if request.action is Action.SKIP:
        planned = _planned(request)
        if planned.lines != approved:
            _refuse(engine, request, f"the flow has come to {' and '.join(planned.lines)} since")
        return commands.execute(engine, replace(request, planned=planned))
    if generation(flow) != approved:
        change = f"generation {generation(flow)} of its checkpoint has begun since this was asked for"
        _refuse(engine, request, change)
    return commands.execute(engine, request)


def _give_up(engine: Engine, request: Command, approved: int | list[str] | None) -> str:
    assert request.job and isinstance(approved, list)
    persons = request.who, request.approver
    try:
        result = giving_up.carry_out(engine, catalog.load(), request.job, approved, *persons, request.reason)
    except (UsageError, LeaseHeld) as error:
        _refuse(engine, request, str(error))
    return f"{request.job}: {result}"


def _refuse(engine: Engine, request: Command, reason: str) -> NoReturn:
    target, result = request.job or request.flows[0], f"nothing done, {reason}"
    with database.transaction(engine) as connection:
        words = request.action, target, request.reason, result
        audit.record(connection, request.who, *words, has_effect=False, approver=request.approver)
    raise AirflowSkipException(f"{target}: {result}")
