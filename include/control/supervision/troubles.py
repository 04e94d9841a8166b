"""The account of what is wrong, from which status, messages, the console and DAG `supervise` speak.

Incidents with the same cause are one trouble: a dead driver is one, with all its flows. What is wrong now and has no
incident yet is in it too, because the supervisor that opens incidents may be the part that is down.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sqlalchemy import Connection, Engine, select

from include.catalog import Catalog
from include.control.flows import alarms, incidents
from include.control.flows.alarms import AlarmKind
from include.control.flows.decide import LONGEST_DELAY_SECONDS, Decision, State, delay_seconds
from include.control.flows.incidents import Acknowledgement, Incident
from include.control.store import database
from include.control.store.schema import drivers, runs
from include.control.supervision import supervision, supervisor_presence
from include.control.supervision.supervision import SUPERVISOR
from include.spec import Flow

# A headline names so many troubles.
MOST_NAMED = 5


@dataclass(frozen=True)
class Trouble:
    """All open incidents of one cause, in words for people and values for programs. Times are seconds since 1970.

    kind: the worst `AlarmKind` among them. cause: identifies the trouble. subject: a driver, a flow, a table, a job, or
    a part of the platform. reason: why, in words. other_reasons: by target, where they differ. action: on each of its
    flows, that helps; empty: none does. command: to paste into a shell. runbook: a page of the repository. flows: that
    it affects. driver: of these, if it is one. log: where that writes, in words. next_start_at: when it is started
    again by itself; None: by nobody.

    acknowledged_by, acknowledged_until, acknowledged_reason: of the person who has taken it on, if anybody has.
    needs_person: nobody has taken it on, and it does not pass by itself. is_recovering: its flows run again, and have
    yet to show that it lasts. incidents: their numbers; empty before the supervisor has seen it.
    """

    kind: str
    cause: str
    subject: str
    began_at: float
    reason: str
    next_step: str
    command: str
    runbook: str
    flows: tuple[str, ...] = ()
    other_reasons: Mapping[str, str] | None = None
    driver: str | None = None
    log: str | None = None
    next_start_at: float | None = None
    acknowledged_by: str | None = None
    acknowledged_until: float | None = None
    acknowledged_reason: str = ""
    needs_person: bool = True
    is_recovering: bool = False
    incidents: tuple[int, ...] = ()
    action: str = ""

    @property
    def title(self) -> str:
        """Such as `BACKING OFF driver main (9 flows)`."""
        count = f" ({len(self.flows)} flows)" if len(self.flows) > 1 else ""
        return f"{self.kind} {self.subject}{count}"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "title": self.title}


def troubles(engine: Engine, tables: Catalog) -> list[Trouble]:
    """Everything that is wrong, worst first. Raises Unreachable."""
    decisions = _decisions(engine, tables)
    absent = _absence(engine)
    with database.reading(engine) as connection:
        now_seconds = database.now(connection)
        lasting = incidents.all_open(connection)
        acknowledged = incidents.valid_acknowledgements(connection)
        driver_logs, next_starts = _logs(connection), _next_starts(connection, decisions)
    known = {incident.target for incident in lasting}
    unseen = [
        Incident(0, flow, decision.state, decision.reason, False, decision.error, decision.cause, now_seconds)
        for flow, decision in decisions.items()
        if decision.is_unhealthy and flow not in known
    ]
    if absent and SUPERVISOR not in known:
        unseen.append(replace(absent, began_at=now_seconds - absent.began_at))
    context = _Context(tables, decisions, acknowledged, driver_logs, next_starts, now_seconds)
    found = [_trouble(group, context) for group in by_cause([*lasting, *unseen]).values()]
    return sorted(found, key=_urgency)


def by_cause(found: Iterable[Incident]) -> dict[str, list[Incident]]:
    """The incidents of each cause, the worst one first."""
    groups: dict[str, list[Incident]] = {}
    for incident in sorted(found, key=lambda incident: (alarms.severity(incident.state), incident.number)):
        groups.setdefault(incident.cause, []).append(incident)
    return groups


def headline(found: Sequence[Trouble], flow_count: int) -> str:
    """One sentence for the top of a page: how many flows need a person, and what for."""
    urgent = [trouble for trouble in found if trouble.needs_person]
    others = [trouble for trouble in found if not trouble.needs_person]
    flows = {flow for trouble in urgent for flow in trouble.flows}
    if flows:
        sentence = f"{len(flows)} of {flow_count} flows need{'s' if len(flows) == 1 else ''} you: {_titles(urgent)}."
    elif urgent:
        sentence = f"The platform needs you: {_titles(urgent)}."
    else:
        sentence = f"None of {flow_count} flows needs you."
    return f"{sentence} Taken on, or passing by itself: {_titles(others)}." if others else sentence


def _titles(found: Sequence[Trouble]) -> str:
    rest = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return "; ".join(trouble.title for trouble in found[:MOST_NAMED]) + rest


@dataclass(frozen=True)
class _Context:
    """logs: by driver. next_starts: by flow that backs off."""

    tables: Catalog
    decisions: Mapping[str, Decision]
    acknowledged: Mapping[str, Acknowledgement]
    logs: Mapping[str, str]
    next_starts: Mapping[str, float]
    now_seconds: float


def _trouble(group: list[Incident], context: _Context) -> Trouble:
    worst = group[0]
    now = {incident.target: context.decisions.get(incident.target) for incident in group}
    reasons = {target: _reason(incident, now[target]) for incident in group for target in [incident.target]}
    flows = _flows(group, context.tables)
    known_flows = [context.tables.flows[flow] for flow in flows if flow in context.tables.flows]
    flow_drivers = {context.tables.driver_of(flow) for flow in known_flows}
    driver = flow_drivers.pop() if len(flow_drivers) == 1 else None
    taken = _taken_on(group, context)
    is_recovering = all(_runs_again(incident, now[incident.target]) for incident in group)
    starts = [context.next_starts[flow] for flow in flows if flow in context.next_starts]
    heals = all(_heals(incident, context) for incident in group)
    worst_now = now[worst.target]
    is_current = worst_now is not None and worst_now.state == worst.state
    return Trouble(
        kind=worst.state,
        cause=worst.cause,
        subject=worst.about,
        began_at=min(incident.began_at for incident in group),
        reason=reasons[worst.target],
        next_step=_next_step(worst_now, worst.state, is_recovering, is_current),
        command=alarms.command(worst.state, worst.subject, worst.number, worst.error, worst.driver),
        runbook=alarms.runbook(worst.state),
        flows=flows,
        other_reasons={target: text for target, text in reasons.items() if text != reasons[worst.target]},
        driver=driver,
        log=context.logs.get(driver or ""),
        next_start_at=max(min(starts), context.now_seconds) if starts and not is_recovering else None,
        acknowledged_by=taken.who if taken else None,
        acknowledged_until=taken.ends_at if taken else None,
        acknowledged_reason=taken.reason if taken else "",
        needs_person=not (taken or is_recovering or heals),
        is_recovering=is_recovering,
        incidents=tuple(incident.number for incident in group if incident.number),
        action=worst_now.action if worst_now else "",
    )


def _next_step(now: Decision | None, state: str, is_recovering: bool, is_current: bool) -> str:
    if is_recovering:
        return "none, it runs again; this ends when it has lasted"
    return now.next_step if now and is_current and now.next_step else alarms.ALARMS[AlarmKind(state)].next_step


def _reason(incident: Incident, now: Decision | None) -> str:
    """Today's reason says more than that of the first minute."""
    return now.reason if now and now.state == incident.state else incident.reason


def _flows(group: Iterable[Incident], tables: Catalog) -> tuple[str, ...]:
    """The flows that incidents are about: a table has those that write it, and a view is one itself."""
    found = {}
    for incident in group:
        if incident.subject in tables.flows:
            found[incident.subject] = True
        elif table := tables.tables.get(incident.subject):
            found.update({table.name: True} if table.is_view else {flow.flow: True for flow in table.readers})
    return tuple(found)


def _taken_on(group: Sequence[Incident], context: _Context) -> Acknowledgement | None:
    """The acknowledgement that covers all of it, the one that ends first."""
    taken = [context.acknowledged.get(incident.target) for incident in group]
    valid = [acknowledgement for acknowledgement in taken if acknowledgement]
    return min(valid, key=lambda acknowledgement: acknowledgement.ends_at) if len(valid) == len(taken) else None


def _runs_again(incident: Incident, now: Decision | None) -> bool:
    return incident.state in incidents.OF_RUN and now is not None and not now.is_unhealthy


def _heals(incident: Incident, context: _Context) -> bool:
    """Whether it may pass by itself: its flow is started again, and has not failed for long."""
    lasts_seconds = context.now_seconds - incident.began_at
    decision = context.decisions.get(incident.target)
    if _runs_again(incident, decision):
        return True
    return incident.state == State.BACKING_OFF and lasts_seconds < 2 * LONGEST_DELAY_SECONDS


def _decisions(engine: Engine, tables: Catalog) -> dict[str, Decision]:
    """By supervised flow, what the supervisor would decide now."""
    return {
        flow: decision
        for driver, flows in tables.drivers().items()
        for flow, (_, decision) in supervision.preview(engine, driver, _names(flows)).items()
    }


def _names(flows: Iterable[Flow]) -> list[str]:
    return [flow.flow for flow in flows]


def _absence(engine: Engine) -> Incident | None:
    """The supervisor that is not at work, unless a person has stopped it. began_at: the seconds since then."""
    presence = supervisor_presence.read(engine)
    if presence.shutdown or presence.is_starting or presence.absence is None:
        return None
    kind = AlarmKind.DEAD if presence.worked_seconds_ago is None else AlarmKind.LATE
    return Incident(0, SUPERVISOR, kind, presence.absence, began_at=presence.worked_seconds_ago or 0)


def _logs(connection: Connection) -> dict[str, str]:
    stored = connection.execute(select(drivers.c.driver, drivers.c.log).where(drivers.c.log.is_not(None)))
    return {row.driver: row.log for row in stored}


def _next_starts(connection: Connection, decisions: Mapping[str, Decision]) -> dict[str, float]:
    backing_off = [flow for flow, decision in decisions.items() if decision.state is State.BACKING_OFF]
    rows = connection.execute(select(runs).where(runs.c.flow.in_(backing_off), runs.c.intended_at.is_not(None)))
    return {row.flow: row.intended_at + delay_seconds(row.attempts) for row in rows}


def _urgency(trouble: Trouble) -> tuple[bool, bool, int, float]:
    return not trouble.needs_person, trouble.is_recovering, alarms.severity(trouble.kind), trouble.began_at
