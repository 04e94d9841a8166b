"""The observations about a flow on which the supervisor decides."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Failure:
    """Why a run ended. error: the error class. needs_person: no retry cures it. cause: what other flows share."""

    sentence: str
    error: str
    needs_person: bool
    cause: str = ""


@dataclass(frozen=True)
class Start:
    """The start of a flow; a driver starts one flow after the other. is_done: the query has reported progress."""

    flow: str
    seconds_ago: float
    is_done: bool


@dataclass(frozen=True)
class ObservedFlow:
    """One flow, as the control database, the checkpoint and the broker show it.

    driver: its name.
    wanted: running, draining or stopped. wanted_why: the reason that was given for it.
    is_held: whether a live process holds its lease. runs_in: the other driver that does so until this one is up.
    is_driver_alive: whether its driver is alive, or may still come up. is_driver_up: whether that holds its own lease.
    newest_start: the start that its driver began last, among the flows it holds; None before the first.
    intended_seconds_ago: since its last intended start; None if there was none.
    attempts: the number of starts since it was last healthy.
    failure: why its last run ended; None while it runs, or if its driver ended without a report.
    sign_seconds_ago: since its query last reported progress; None before the first report.
    waits_for: the part of its source that is missing, in words.
    backlog: how it falls behind, in words; None while it keeps up.
    expires: the records that are about to be deleted unread, in words.
    rejects: why its rows do not reach the table, in words; None while they do.
    not_fresh: how the table breaks its freshness promise, in words; None while it is kept. late_by: the cause above it.
    restart_seconds_ago: since a restart of its driver was requested that is still due.
    abandoned: the dead job that has stopped it. job: the live one that keeps it stopped, or has its table to itself.
    is_platform_down: `make down` stopped everything. ended_with_platform: its driver was alive until then.
    """

    driver: str = ""
    wanted: str = "running"
    wanted_why: str = ""
    is_held: bool = False
    runs_in: str = ""
    is_driver_alive: bool = False
    is_driver_up: bool = False
    newest_start: Start | None = None
    intended_seconds_ago: float | None = None
    attempts: int = 0
    failure: Failure | None = None
    sign_seconds_ago: float | None = None
    waits_for: str | None = None
    backlog: str | None = None
    expires: str | None = None
    rejects: str | None = None
    not_fresh: str | None = None
    late_by: str = ""
    restart_seconds_ago: float | None = None
    abandoned: Failure | None = None
    job: str | None = None
    is_platform_down: bool = False
    ended_with_platform: bool = False

    @property
    def is_awaited(self) -> bool:
        """Whether its driver has to come up to take it over."""
        return bool(self.runs_in) and self.wanted != "stopped" and not self.is_platform_down
