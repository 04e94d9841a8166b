"""States in words, signs and colours, the worst first."""

from enum import IntEnum

from include.control.flows.alarms import AlarmKind
from include.control.flows.decide import State


class Severity(IntEnum):
    BAD = 0
    WARNING = 1
    UNKNOWN = 2
    QUIET = 3
    GOOD = 4


WARNINGS = {
    *(State.LAGGING, State.NOT_FRESH, State.REJECTING, AlarmKind.HELD_BACK, AlarmKind.COPIES_LEFT),
    *(AlarmKind.NOT_CLEANED_UP, AlarmKind.PAUSED, AlarmKind.LATE, AlarmKind.TRIAL, AlarmKind.INVALID_DEFINITION),
}
SIGNS = {
    Severity.BAD: "✖",
    Severity.WARNING: "▲",
    Severity.UNKNOWN: "?",
    Severity.QUIET: "○",
    Severity.GOOD: "●",
}


def severity(state: str | None) -> Severity:
    if not state:
        return Severity.UNKNOWN
    if state == State.HEALTHY:
        return Severity.GOOD
    if state in WARNINGS:
        return Severity.WARNING
    return Severity.BAD if state in list(AlarmKind) else Severity.QUIET


def css_class(state: str | None) -> str:
    return severity(state).name.lower()


def sign(state: str | None) -> str:
    """Beside the colour, for whoever does not see it."""
    return SIGNS[severity(state)]
