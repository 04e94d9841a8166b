"""Plans a rewind: to which version each table goes back, what that undoes, and why it cannot be done, if so.

Read from the logs, without a JVM: `python -m include.ledger rewind TABLE MOMENT` shows it, and nothing is written.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sqlalchemy import Engine

from include.catalog import Catalog
from include.control.jobs import backfills, rewinds
from include.control.jobs.rewinds import Part
from include.control.store import database
from include.errors import Broken, UsageError
from include.readers import active_commits
from include.readers.batches import BACKFILL, kind
from include.readers.checkpoint import newest_generation
from include.readers.delta_log import Commit, Log
from include.readers.timeline import Timeline
from include.recovery import consistent_versions, replayable
from include.recovery.consistent_versions import ConsistentVersions
from include.settings import settings
from include.spec import Delta, Table
from include.validation import slices

# So many backfills are looked at: a part of an older one is taken for one of its own.
MOST_BACKFILLS = 10_000
# The version of a quarantine whose log no longer goes back so far.
NOWHERE = -1


@dataclass(frozen=True)
class Step:
    """What happens to one table. is_undone: whether anything came behind that; undone: what, in words.

    why: it goes back further than was asked, in words; empty where it does not.
    """

    part: Part
    is_undone: bool
    undone: list[str]
    why: str


@dataclass(frozen=True)
class RewindPlan:
    """steps: by table, in graph order; none where nothing is to be undone. refusals: none where it can be done."""

    table: str
    moment: datetime
    steps: dict[str, Step]
    views: list[str]
    refusals: list[str] = field(default_factory=list)

    @property
    def cut(self) -> dict[str, Part]:
        return {name: step.part for name, step in self.steps.items()}

    def lines(self) -> list[str]:
        if not self.steps:
            return [f"{self.table}: nothing has come since {_said(self.moment.timestamp())}, nothing is to be undone"]
        said = [line for name, step in self.steps.items() for line in _of_step(name, step)]
        said += [f"{view} is refreshed" for view in self.views]
        return said + [f"REFUSED: {refusal}" for refusal in self.refusals]


def plan(engine: Engine, table: Table, tables: Catalog, to: str, own: int | None = None) -> RewindPlan:
    """to: a moment of ISO 8601; one without a time zone is UTC. own: the number of the rewind that is planned anew.

    Raises UsageError where the table cannot go back so far, Broken for a damaged log, and Unreachable.
    """
    moment = slices.moment("--to", to)
    if table.is_view:
        raise UsageError(f"{table.name} is a materialized view, which is never rewound but refreshed: jobs/refresh.py")
    below = [one for one in tables.below(table.name) if settings().is_stored(one.name)]
    chosen = {one.name: one for one in [table, *below] if not one.is_view}
    lines = {name: Timeline(name) for name in chosen}
    done = backfills.newest(engine, limit=MOST_BACKFILLS)
    together: dict[int, dict[str, int]] = {}
    for one in done:
        if one.version is not None and one.table in lines and one.version in lines[one.table].commits:
            together.setdefault(one.root, {})[one.table] = one.version
    found = consistent_versions.at(moment.timestamp(), lines, chosen, list(together.values()))
    steps = {name: _step(one, lines, found) for name, one in chosen.items()}
    touched = {name for name, step in steps.items() if step.is_undone}
    if not touched:
        return RewindPlan(table.name, moment, {}, [])
    with database.transaction(engine) as connection:
        refusals = rewinds.obstacles(connection, steps, own)
    for name, step in steps.items():
        if step.is_undone or reads(chosen[name], touched):
            refusals += _obstacles(chosen[name], lines[name], step.part, touched)
    return RewindPlan(table.name, moment, steps, [one.name for one in below if one.is_view], refusals)


def _step(table: Table, lines: dict[str, Timeline], found: ConsistentVersions) -> Step:
    line, version = lines[table.name], found.versions[table.name]
    undone = [commit for commit in line.after(version) if line.changes(commit.version)]
    quarantine = _quarantine(table, line, version) if settings().is_stored(table.quarantine) else None
    newest = {flow.flow: newest_generation(settings().checkpoints(flow.flow)) for flow in table.flows}
    generations = {flow: number for flow, number in newest.items() if number is not None}
    part = Part(version, quarantine, generations, line.commits[version].timestamp)
    is_undone = line.content(line.versions[-1]) != line.content(version)
    return Step(part, is_undone, list(_words(undone)), found.why.get(table.name, ""))


def _quarantine(table: Table, line: Timeline, version: int) -> int:
    """To which version the quarantine goes back, so that it holds what broke rules up to this version of the table.

    What it may hold beyond that, of a batch that was not committed then, the flow's next batch replaces.
    """
    kept = [commit for number, commit in line.commits.items() if number <= version]
    marks = {_mark(commit) for commit in kept}
    log = Log(settings().table_path(table.quarantine))
    found: int | None = log.newest
    for commit in (commit for commit, stands in active_commits.commits(log) if stands):
        belongs = _belongs(commit, line, version, marks)
        if belongs is False:
            found = None
            continue
        found = commit.version if found is None else found
        if belongs:
            break
    return NOWHERE if found is None else found


def _belongs(commit: Commit, line: Timeline, version: int, marks: set[tuple[str, object] | None]) -> bool | None:
    """Whether a commit of the quarantine goes with what is kept of the table; None for one that changes no row."""
    said = commit.metadata
    if {"flow", "generation", "batch"} <= said.keys():
        stand = line.stand(said["flow"], version)
        return stand is not None and (int(said["generation"]), int(said["batch"])) <= stand.batch
    mark = _mark(commit)
    return None if mark is None else mark in marks


def _mark(commit: Commit) -> tuple[str, object] | None:
    """What a replay, a backfill or a rewind calls itself, in a table and in its quarantine."""
    said = commit.metadata
    if "replay" in said:
        return "replay", said["replay"]
    return next(((word, said[word].get("key")) for word in (BACKFILL, active_commits.REWIND) if word in said), None)


def reads(table: Table, touched: set[str]) -> bool:
    """Whether a flow of the table reads one of those that are put back."""
    return any(isinstance(flow.source, Delta) and flow.source.table in touched for flow in table.flows)


def _obstacles(table: Table, line: Timeline, part: Part, touched: set[str]) -> Iterator[str]:
    wanted = {table.name: part.version, table.quarantine: part.quarantine}
    for name, to in wanted.items():
        if to is None:
            continue
        log = Log(settings().table_path(name))
        if to == NOWHERE:
            yield f"{name}: its log begins with version {log.versions[0]}, behind what is kept: name a later moment"
            continue
        try:
            gone = replayable.missing(log, {file.path for file in log.state_at(to).live})
        except Broken as error:
            yield str(error)
            continue
        if gone:
            yield f"{name}: VACUUM has deleted {len(gone):,} files of version {to}, {gone[0]} say: name a later moment"
    for flow in table.flows:
        stand, newest = line.stand(flow.flow, part.version), line.stand(flow.flow, line.versions[-1])
        is_put_back = isinstance(flow.source, Delta) and flow.source.table in touched
        if stand is None and isinstance(flow.source, Delta) and _begins_late(flow.source):
            yield f"{flow.flow}: it would begin anew, and its source says since when: name a later moment"
        elif not is_put_back:
            yield from replayable.obstacles(flow, stand.stamp if stand else None, newest.stamp if newest else None)


def _begins_late(source: Delta) -> bool:
    return source.since is not None or source.since_version is not None


def _words(undone: list[Commit]) -> Iterator[str]:
    batches = [commit for commit in undone if "batch" in commit.metadata and "flow" in commit.metadata]
    if batches:
        rows = sum(commit.rows or 0 for commit in batches)
        yield f"{len(batches):,} batches with {rows:,} rows are undone and made again"
    for commit in undone:
        if commit in batches:
            continue
        whose = kind(commit)
        what = f"version {commit.version} ({commit.operation})"
        if whose == "replay":
            yield f"{what} is undone: the rows that this replay put back are in the quarantine again"
        elif whose == BACKFILL:
            number = commit.metadata[BACKFILL].get("number")
            yield f"{what} is undone: backfill {number} does not come back, run it again where it is wanted"
        elif whose == active_commits.REWIND:
            yield f"{what} is undone: rewind {commit.metadata[whose]['number']}"
        else:
            yield f"{what} is undone and does not come back, as no flow of Sluice wrote it"


def _of_step(name: str, step: Step) -> Iterator[str]:
    further = f", as {step.why}" if step.why else ""
    if not step.is_undone:
        yield f"{name} stays as it is, at what it held at {_said(step.part.at)}"
        return
    yield f"{name} goes back to version {step.part.version} of {_said(step.part.at)}{further}"
    yield from (f"  {line}" for line in step.undone)


def _said(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}Z"
