"""The account of what is wrong, what is asked for and what is under way, for `sluice status` and pages."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from include.catalog import Catalog
from include.control import pending_work
from include.control.flows import placements
from include.control.pending_work import Work
from include.control.store import database
from include.control.supervision import supervisor_presence, troubles
from include.control.supervision.supervision import SUPERVISOR
from include.control.supervision.troubles import Trouble, headline
from include.errors import SluiceError
from include.settings import settings


@dataclass(frozen=True)
class Account:
    """headline: one sentence. troubles: worst first. work: requests and jobs, oldest first. Both are empty where the
    control database does not answer, which the headline says then.
    """

    headline: str
    troubles: tuple[Trouble, ...] = ()
    work: tuple[Work, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "headline": self.headline,
            "troubles": [trouble.as_json() for trouble in self.troubles],
            "work": [work.as_json() for work in self.work],
        }

    def lines(self) -> Iterator[str]:
        """The headline, then a block for each trouble, then a line for each request and job."""
        yield self.headline
        for trouble in self.troubles:
            yield ""
            yield from _block(trouble)
        if self.work:
            yield ""
            yield from (work.words for work in self.work)

    def of_flow(self, flow: str) -> list[Trouble]:
        """The troubles that affect the flow, or the view."""
        return [trouble for trouble in self.troubles if flow in trouble.flows]


def take(tables: Catalog) -> Account:
    """The account of now. Raises nothing: a control database that does not answer is what is wrong then."""
    try:
        engine = database.connect(settings().control_url)
        tables = placements.place(engine, tables)
        found, presence = troubles.troubles(engine, tables), supervisor_presence.read(engine)
        sentence = headline(found, len(tables.flows))
        if presence.absence and not any(trouble.cause == SUPERVISOR for trouble in found):
            # A platform that is down or starting on purpose is no trouble.
            sentence = f"{presence.absence} {sentence}"
        return Account(sentence, tuple(found), tuple(pending_work.read(engine)))
    except SluiceError as error:
        return Account(f"Nobody knows what is wrong: {error}")


def _block(trouble: Trouble) -> Iterator[str]:
    yield f"{trouble.title}, since {_moment(trouble.began_at)}"
    yield f"  why      {trouble.reason}"
    yield from (f"           {target}: {reason}" for target, reason in (trouble.other_reasons or {}).items())
    if len(trouble.flows) > 1:
        yield f"  flows    {', '.join(trouble.flows)}"
    if trouble.next_start_at is not None:
        yield f"  starts   {_moment(trouble.next_start_at)}, by itself"
    yield f"  next     {trouble.next_step}"
    yield f"  command  {trouble.command}"
    yield f"  read     {trouble.runbook}"
    if trouble.driver:
        yield f"  driver   {trouble.driver}{f', log {trouble.log}' if trouble.log else ''}"
    if trouble.acknowledged_by and trouble.acknowledged_until:
        until = _moment(trouble.acknowledged_until)
        yield f"  taken on by {trouble.acknowledged_by} until {until}: {trouble.acknowledged_reason}"


def _moment(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}Z"
