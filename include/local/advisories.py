"""`make audit`: looks up each component in the advisories of OSV. It fails if one is affected, or was not looked up."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from include.errors import SluiceError, Unreachable, report
from include.local import components
from include.local.components import Component
from include.settings import settings

# OSV has the advisories of PyPI, Maven and npm. A mirror of its API serves as well.
ADDRESS, ADDRESS_VARIABLE = "https://api.osv.dev", "SLUICE_ADVISORIES"
TIMEOUT_SECONDS = 30
# Most queries in a request, by OSV's own limit.
MOST_QUERIES = 1_000
ACCEPTED = Path(__file__).with_name("accepted_advisories.txt")
# Advisories change every day. A mirror whose newest one is older has stopped.
OLD_DAYS = 30


class Affected(SluiceError):
    """A component has an advisory that nobody has accepted."""


@dataclass(frozen=True)
class Advisory:
    """One advisory of a component. modified: when it was changed last."""

    component: Component
    name: str
    modified: datetime


@dataclass(frozen=True)
class Audit:
    """affected: by advisories that nobody has accepted. accepted: the others. not_asked: components without a group, of
    which OSV knows nothing. newest: when the newest advisory was changed; None if there is none. asked_at: by the clock
    of the server.
    """

    asked: int
    affected: list[Advisory]
    accepted: list[Advisory]
    not_asked: list[Component]
    newest: datetime | None
    asked_at: datetime


def audit(found: Sequence[Component], address: str, accepted: Mapping[str, date], today: date) -> Audit:
    """Looks up the components. accepted: by advisory, until when. Raises Unreachable."""
    asked = [component for component in found if component.kind != "maven" or component.group]
    advisories: list[Advisory] = []
    asked_at = datetime.now(UTC)
    for begin in range(0, len(asked), MOST_QUERIES):
        answers, asked_at = _ask(address, asked[begin : begin + MOST_QUERIES])
        advisories += answers
    is_accepted = [accepted.get(advisory.name, date.min) >= today for advisory in advisories]
    return Audit(
        asked=len(asked),
        affected=[advisory for advisory, is_fine in zip(advisories, is_accepted, strict=True) if not is_fine],
        accepted=[advisory for advisory, is_fine in zip(advisories, is_accepted, strict=True) if is_fine],
        not_asked=[component for component in found if component not in asked],
        newest=max((advisory.modified for advisory in advisories), default=None),
        asked_at=asked_at,
    )


def _ask(address: str, asked: Sequence[Component]) -> tuple[list[Advisory], datetime]:
    """Returns the advisories of components, over all pages of the answer, and when the server answered."""
    advisories: list[Advisory] = []
    left: list[tuple[Component, str]] = [(component, "") for component in asked]
    while True:
        queries = [
            {"package": {"purl": component.purl}} | ({"page_token": token} if token else {})
            for component, token in left
        ]
        answer, answered_at = _post(f"{address}/v1/querybatch", {"queries": queries})
        results = answer.get("results") if isinstance(answer, dict) else None
        if not isinstance(results, list) or len(results) != len(left):
            raise _not_looked_up(address, "its answer is no list of as many results as were asked for")
        pairs = list(zip(left, results, strict=True))
        for (component, _), result in pairs:
            for found in result.get("vulns") or ():
                advisories.append(Advisory(component, found["id"], datetime.fromisoformat(found["modified"])))
        left = [(component, token) for (component, _), result in pairs if (token := result.get("next_page_token"))]
        if not left:
            return advisories, answered_at


def _post(url: str, body: object) -> tuple[Any, datetime]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
            answered = response.headers.get("Date")
            return json.load(response), parsedate_to_datetime(answered) if answered else datetime.now(UTC)
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise _not_looked_up(url, str(error)) from error


def _not_looked_up(url: str, reason: str) -> Unreachable:
    return Unreachable(
        f"no advisory was looked up, which is no pass: {url} does not answer as OSV does ({reason}): let it through, "
        f"or name a mirror in {ADDRESS_VARIABLE}"
    )


def read_accepted(file: Path) -> dict[str, date]:
    """Returns by advisory until when it is accepted. Each line: advisory, date, reason. Raises SluiceError."""
    accepted: dict[str, date] = {}
    for line in file.read_text().splitlines():
        words = line.split(maxsplit=2)
        if not words or words[0].startswith("#"):
            continue
        try:
            name, until, _ = words
            accepted[name] = date.fromisoformat(until)
        except ValueError as error:
            raise SluiceError(f"{file.name} has {line!r}: write advisory, date as 2027-01-31, and reason") from error
    return accepted


def lines(result: Audit) -> Iterator[str]:
    """Describes an audit for people."""
    yield f"{result.asked} components were looked up at {result.asked_at:%Y-%m-%d %H:%M}Z"
    if result.newest is None:
        yield "there is no advisory about them, and so no date of one"
    else:
        days = (result.asked_at - result.newest).days
        remark = "; if it is a mirror, look whether it stands still" if days > OLD_DAYS else ""
        yield f"the newest advisory about them was changed {days} days ago, on {result.newest:%Y-%m-%d}{remark}"
    yield from _listed("affected", result.affected)
    yield from _listed("accepted", result.accepted)
    if result.not_asked:
        names = ", ".join(component.purl for component in result.not_asked)
        yield f"not looked up, as they do not say their group: {names}"


def _listed(word: str, advisories: Iterable[Advisory]) -> Iterator[str]:
    yield from (f"  {word}: {advisory.component.purl} by {advisory.name}" for advisory in advisories)


def main() -> None:
    found = components.all_components(settings().jars)
    address = os.environ.get(ADDRESS_VARIABLE) or ADDRESS
    result = audit(found, address.rstrip("/"), read_accepted(ACCEPTED), datetime.now(UTC).date())
    print("\n".join(lines(result)), flush=True)
    if result.affected:
        raise Affected(
            f"{len(result.affected)} advisories concern components of Sluice: upgrade these, or accept an advisory in "
            f"{ACCEPTED.name} with a date and a reason"
        )
    if result.not_asked:
        raise Unreachable(
            f"{len(result.not_asked)} components were not looked up, which is no pass: name their groups in "
            f"include/local/components.py"
        )


if __name__ == "__main__":
    report(main)
