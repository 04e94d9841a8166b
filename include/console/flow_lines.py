"""The line of each flow, from what the supervisor and drivers stored in the control database."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Row, select

from include.catalog import Catalog
from include.console import charts, words
from include.console.board import FlowLine
from include.console.charts import Point
from include.control.flows import incidents
from include.control.flows.alarms import action_for
from include.control.flows.decide import RUNNING_BUT_UNHEALTHY, UNHEALTHY, Decision, State
from include.control.flows.incidents import Acknowledgement
from include.control.leases import lease
from include.control.leases.process import Holder
from include.control.store import database
from include.control.store.schema import backlogs
from include.control.store.schema import incidents as incident_rows
from include.control.supervision import supervision
from include.control.supervision.lag_history import TREND_SECONDS

# States in which a restart helps, or may.
RESTARTABLE = {State.STUCK, State.BACKING_OFF, State.BROKEN}


@dataclass(frozen=True)
class Observed:
    """alarms, acknowledged, held, backlog: by flow."""

    now: float
    alarms: dict[str, Row[Any]]
    acknowledged: dict[str, Acknowledgement]
    held: dict[str, Holder]
    backlog: dict[str, list[Point]]


def lines(engine: Engine, tables: Catalog) -> tuple[float, list[FlowLine]]:
    """Returns the database's time, and the lines. Raises Unreachable."""
    decided = {
        flow: decision
        for driver, flows in tables.drivers().items()
        for flow, (_, decision) in supervision.preview(engine, driver, [flow.flow for flow in flows]).items()
    }
    with database.reading(engine) as connection:
        now = database.now(connection)
        open_rows = connection.execute(select(incident_rows).where(incident_rows.c.ended_at.is_(None))).all()
        observed = Observed(
            now,
            {row.target: row for row in open_rows},
            incidents.valid_acknowledgements(connection),
            lease.alive(connection),
            _backlog(connection, now - TREND_SECONDS),
        )
    return now, [_line(flow, tables.flows[flow].driver, decision, observed) for flow, decision in decided.items()]


def _backlog(connection: Connection, since: float) -> dict[str, list[Point]]:
    found: dict[str, list[Point]] = {}
    for row in connection.execute(select(backlogs).where(backlogs.c.at >= since).order_by(backlogs.c.at)):
        found.setdefault(row.flow, []).append((row.at, float(row.behind)))
    return found


def _line(flow: str, driver: str, decision: Decision, observed: Observed) -> FlowLine:
    state, reason, next_step = decision.state, decision.reason, decision.next_step
    alarm, taken = observed.alarms.get(flow), observed.acknowledged.get(flow)
    if alarm and not decision.is_unhealthy and alarm.state in RUNNING_BUT_UNHEALTHY:
        # Only the supervisor looks at sources.
        state, reason, next_step = State(alarm.state), alarm.reason, "see its runbook in Incidents"
    points = observed.backlog.get(flow, [])
    newest = points[-1][1] if points else None
    holder = observed.held.get(flow)
    return FlowLine(
        flow,
        state,
        reason,
        next_step,
        action=action_for(decision.error) if state in RESTARTABLE else "start" if state is State.STOPPED else "",
        taken=str(taken) if taken else "",
        needs_person=state in UNHEALTHY and state is not State.BACKING_OFF and not taken,
        behind=words.count(newest),
        spark=tuple(charts.sparkline(points, observed.now - TREND_SECONDS, observed.now)),
        spark_words=f"unread in the last {TREND_SECONDS // 60} min, now {words.count(newest)}",
        driver=driver,
        host=holder.host if holder else "",
    )
