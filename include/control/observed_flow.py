"""A flow as the supervisor sees it, before it decides."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Failure:
    """Why a run ended. error: its error class. needs_person: no retry cures it."""

    sentence: str
    error: str
    needs_person: bool


@dataclass(frozen=True)
class Start:
    """Of a flow, in a driver, which starts one after the other. is_done: its query has shown a sign of life."""

    flow: str
    seconds_ago: float
    is_done: bool


@dataclass(frozen=True)
class ObservedFlow:
    """One flow, as the control database, the checkpoint and the broker show it.

    wanted: running, draining or stopped; wanted_why: in whose words.
    is_held: whether a live process holds its lease.
    is_driver_alive: whether its driver lives, or may still come up. is_driver_up: whether it holds its own lease.
    newest_start: what its driver began to start last, of the flows that it holds; None before the first.
    intended_seconds_ago: since it was last meant to start, by whomever; None when it never was.
    attempts: starts since it was last healthy.
    failure: why its last run ended; None while it runs, or when it ended without a word.
    sign_seconds_ago: since its query last showed a sign of life; None before the first.
    waits_for: what of its source is away, in words.
    backlog: how it falls behind, in words; None while it keeps up.
    expires: what of its source is about to be deleted unread, in words.
    rejects: how its rows end elsewhere than in the table, in words; None while they pass.
    not_fresh: how the table's promise is broken, in words; None while it is kept.
    restart_seconds_ago: since a restart of its driver was asked for that the driver has not followed yet.
    abandoned: the job that stopped it for a while has died.
    is_platform_down: `make down` stopped everything. ended_with_platform: its driver lived until then.
    """

    wanted: str = "running"
    wanted_why: str = ""
    is_held: bool = False
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
    restart_seconds_ago: float | None = None
    abandoned: Failure | None = None
    is_platform_down: bool = False
    ended_with_platform: bool = False
