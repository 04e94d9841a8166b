"""Which flow leaves a driver that has the most executors it may have, for one with room: a pure function."""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

from include.control.flows.scale import MOST_NEED, Decision, Reason, greatest_need, needs, throughout

# Of a driver that takes a flow, so that the move does not make it the next one that has too little.
HAS_ROOM = (Reason.KEEPS_UP, Reason.LESS, Reason.LESS_NOT_YET)


@dataclass(frozen=True)
class Move:
    """A flow that is to go from a driver to another one. need: of the flow, in executors."""

    flow: str
    driver: str
    to: str
    need: float


def rebalance(decisions: Mapping[str, Decision], movable: Container[str]) -> Move | None:
    """The move that helps the driver which lacks most; None if none lacks anything, or if no other has room.

    decisions: by driver, made at the same time. movable: the flows that may move.

    The flow is the one with the least need that lets its driver keep up, or else the one with the greatest. A driver
    keeps one flow at least: to move its only one would move what it lacks, too.
    """
    lacking = [driver for driver, decision in decisions.items() if _lacks(decision)]
    for driver in sorted(lacking, key=lambda driver: _excess(decisions[driver]), reverse=True):
        moves = list(_moves(driver, decisions, movable))
        enough = [move for move in moves if move.need >= _excess(decisions[driver])]
        if enough:
            return min(enough, key=lambda move: move.need)
        if moves:
            return max(moves, key=lambda move: move.need)
    return None


def _lacks(decision: Decision) -> bool:
    """Whether the driver has needed more executors than it may have for some time, and not for a moment."""
    most = decision.inputs.most
    return decision.size == most and throughout(decision.verdicts, lambda verdict: verdict.need > MOST_NEED * most)


def _excess(decision: Decision) -> float:
    return decision.verdict.need - decision.inputs.most


def _moves(driver: str, decisions: Mapping[str, Decision], movable: Container[str]) -> Iterator[Move]:
    """Yields each move of a flow to the driver with the most room, if that is enough."""
    cores = decisions[driver].inputs.cores
    others = {to: decision for to, decision in decisions.items() if to != driver and decision.inputs.cores == cores}
    rooms = {to: _room(decision) for to, decision in others.items()}
    flow_needs = needs(decisions[driver].inputs)
    if not rooms or len(flow_needs) < 2:
        return
    to = max(rooms, key=rooms.__getitem__)
    for flow, need in flow_needs.items():
        if flow in movable and 0 < need <= rooms[to]:
            yield Move(flow, driver, to, need)


def _room(decision: Decision) -> float:
    """The executors that the driver may have and has not needed for some time."""
    if decision.reason not in HAS_ROOM or decision.verdict.has_backlog:
        return 0.0
    return decision.inputs.most - greatest_need(decision.verdicts)
