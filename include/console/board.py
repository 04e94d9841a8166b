"""The board: a line for each flow, the worst first, and the filters in its address."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from include.console import states, words
from include.console.states import Severity

FILTERS = ("state", "layer", "driver")


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
