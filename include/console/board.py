"""The board: a line for each flow, the worst first, and the filters in its address."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from include.console import charts, states, words
from include.console.states import Severity
from include.control.flows.decide import UNHEALTHY, State
from include.monitoring.snapshot import FlowSnapshot, Sample, Snapshot

FILTERS = ("state", "layer", "driver")
HISTORY_SECONDS = 3600
# The rates and the phase of its last minute say nothing of what a flow does in these.
ENDED = {State.BACKING_OFF, State.BROKEN, State.STOPPED}


@dataclass(frozen=True)
class FlowLine:
    """What the board says about a flow, in words; pieces of the line of its lag. action: what to press, if anything.

    has_alarm: whether it has a runbook. taken: who has taken its trouble on. needs_person: nobody has, and it does not
    pass by itself.
    """

    flow: str
    state: str | None
    reason: str = ""
    next_step: str = ""
    action: str = ""
    has_alarm: bool = False
    taken: str = ""
    needs_person: bool = False
    behind: str = words.UNKNOWN
    spark: tuple[str, ...] = ()
    spark_words: str = ""
    fresh: str = ""
    rates: str = ""
    phase: str = ""
    restarts: str = ""
    driver: str = ""
    host: str = ""
    is_view: bool = False
    layer: str = ""

    @property
    def where(self) -> str:
        return ", ".join(filter(None, (self.driver, self.host)))

    @property
    def order(self) -> tuple[bool, bool, Severity, str]:
        return not self.needs_person, self.is_view, states.severity(self.state), self.flow


def lines(snapshot: Snapshot, histories: Mapping[str, Sequence[Sample]], urgent: frozenset[str]) -> list[FlowLine]:
    """The line of each flow, from a snapshot and the last hour of its history. urgent: the flows that need a person."""
    return [_line(flow, snapshot.at, histories.get(flow.flow, ()), flow.flow in urgent) for flow in snapshot.flows]


def _line(flow: FlowSnapshot, at: float, history: Sequence[Sample], is_urgent: bool) -> FlowLine:
    is_unhealthy = flow.state in UNHEALTHY
    points = [(sample.at, sample.lag_seconds) for sample in history]
    has_ended = flow.state in ENDED
    rates = (None, None) if has_ended else (flow.rows_in_per_second, flow.rows_out_per_second)
    phase = "" if has_ended else flow.phase
    return FlowLine(
        flow.flow,
        flow.state,
        flow.reason,
        flow.next_step,
        action=flow.action,
        has_alarm=bool(flow.alarm),
        taken=flow.acknowledged,
        needs_person=is_urgent or (is_unhealthy and not flow.acknowledged and not flow.alarm),
        behind=_behind(flow),
        spark=tuple(charts.sparkline(points, at - HISTORY_SECONDS, at)),
        spark_words=f"age of what is unread in the last hour, now {words.span(flow.lag_seconds)}",
        fresh=flow.freshness_words,
        rates="" if rates == (None, None) else ", ".join(map(words.count, rates)),
        phase=f"{phase}, {words.span(at - flow.phase_at)}" if phase and flow.phase_at else phase,
        restarts=words.count(flow.restarts) if flow.restarts is not None else "",
        driver=flow.driver,
        host=flow.host,
        is_view=flow.is_view,
        layer=flow.layer or flow.table.partition(".")[0],
    )


def _behind(flow: FlowSnapshot) -> str:
    """Rows where they are known, else the measure of the source, and the age of the oldest."""
    if flow.unknown:
        return "unknown"
    if not (flow.behind or flow.rows or flow.lag_seconds):
        return "0"
    rows = flow.rows if flow.rows is not None else flow.behind if flow.unit == "records" else None
    counted = flow.lag_words if rows is None else f"{'over ' if flow.is_more else ''}{words.count(rows)} rows"
    return f"{counted}, {words.span(flow.lag_seconds)}" if flow.lag_seconds else counted


def view(lines: Sequence[FlowLine], query: Mapping[str, str]) -> dict[str, Any]:
    """The lines that the address asks for, and the filters with their choices."""
    chosen = {name: query.get(name, "") for name in ("q", *FILTERS)}
    choices = {name: sorted({str(getattr(line, name) or "") for line in lines} - {""}) for name in FILTERS}
    shown = [line for line in lines if _is_chosen(line, chosen)]
    return {
        "here": "",
        "rows": sorted(shown, key=lambda line: line.order),
        "total": len(lines),
        "chosen": chosen,
        "choices": choices,
        "is_filtered": any(chosen.values()),
    }


def _is_chosen(line: FlowLine, chosen: Mapping[str, str]) -> bool:
    is_named = chosen["q"].lower() in line.flow.lower()
    return is_named and all(chosen[name] in ("", getattr(line, name)) for name in FILTERS)
