"""Plans a rewind: the version to which each table goes back, what that undoes, and what prevents it.

It reads the logs, without a JVM. `sluice rewind TABLE MOMENT` shows it, and nothing is written.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import takewhile

from sqlalchemy import Engine

from include.catalog import Catalog
from include.checkpoints.checkpoint_files import newest_generation
from include.control.jobs import rewinds, store
from include.control.jobs.backfills import Backfill
from include.control.jobs.rewinds import RestorePoint, Rewind
from include.control.store import database
from include.delta import commit_history
from include.delta.commit_history import REWIND
from include.delta.delta_log import Commit, DeltaLog
from include.errors import FlowBroken, UsageError
from include.flows import delta_source, sources
from include.flows.batches import BACKFILL, commit_kind
from include.flows.timeline import Timeline
from include.lake import locations
from include.project import ranges
from include.spec import Delta, Flow, Table


@dataclass(frozen=True)
class LoweredVersion:
    """A table that must go back further, and why. version: None where no older version is left."""

    table: str
    version: int | None
    why: str


@dataclass
class ConsistentVersions:
    """The version of each table. why: the reasons, for tables that go back further than the moment."""

    versions: dict[str, int]
    why: dict[str, str]


def newest_consistent(
    moment: float, timelines: Mapping[str, Timeline], tables: Mapping[str, Table], together: Sequence[Mapping[str, int]]
) -> ConsistentVersions:
    """Returns the newest consistent cut at this moment, in seconds since 1970, or before it.

    tables: the tables of `timelines`, each after those that it reads.
    together: versions by table that are either all undone or all kept.
    Raises UsageError where there is no such cut.
    """
    cut = ConsistentVersions({}, {})
    for name, timeline in timelines.items():
        version = timeline.newest_at(moment)
        if version is None:
            raise _too_far(timeline, "it is asked for")
        cut.versions[name] = version
    while lowered := next(_violations(cut.versions, timelines, tables, together), None):
        if lowered.version is None:
            raise _too_far(timelines[lowered.table], lowered.why)
        cut.versions[lowered.table] = lowered.version
        cut.why[lowered.table] = lowered.why
    return cut


def _violations(
    versions: Mapping[str, int],
    timelines: Mapping[str, Timeline],
    tables: Mapping[str, Table],
    together: Sequence[Mapping[str, int]],
) -> Iterator[LoweredVersion]:
    """Yields the tables whose versions violate a rule."""
    for name, timeline in timelines.items():
        if (refresh_version := timeline.pending_refresh(versions[name])) is not None:
            yield LoweredVersion(
                name, timeline.before(refresh_version), "a full refresh had yet to say where its flows go on"
            )
    for table in tables.values():
        for flow in table.flows:
            if flow.source.table in timelines:
                yield from _check_reader(flow, flow.source_as(Delta), versions, timelines)
    for group in together:
        for name, version in group.items():
            if versions[name] >= version and any(versions[other] < group[other] for other in group):
                why = f"a backfill that version {version} is part of is undone elsewhere"
                yield LoweredVersion(name, timelines[name].before(version), why)


def _check_reader(
    flow: Flow, source: Delta, versions: Mapping[str, int], timelines: Mapping[str, Timeline]
) -> Iterator[LoweredVersion]:
    reader, source_timeline = timelines[flow.name], timelines[source.table]
    newest_batch = reader.stand(flow.flow, versions[flow.name])
    if newest_batch is None:
        # The flow starts over with a snapshot of its source.
        return
    content_read, content_kept = (
        source_timeline.read_to(newest_batch.metadata["source_to"], source),
        source_timeline.content(versions[source.table]),
    )
    if content_read is None or content_read > content_kept:
        how_far = "within a version" if content_read is None else "beyond that"
        batch = "{generation}/{batch}".format_map(newest_batch.metadata)
        why = f"its batch {batch} had read {source.table} {how_far}"
        yield LoweredVersion(flow.name, reader.before(newest_batch.version), why)
    elif content_read < content_kept:
        lower = source_timeline.newest_of(content_read, versions[source.table])
        yield LoweredVersion(source.table, lower, f"{flow.flow} had read no more of it by then")


def _too_far(timeline: Timeline, why: str) -> UsageError:
    return UsageError(
        f"{timeline.table} cannot go back so far ({why}): its log begins with version {timeline.log.versions[0]}; "
        f"name a later moment, or make the rows again by a backfill"
    )


# Parts of older backfills are treated as independent commits.
MOST_BACKFILLS = 10_000
# The version of a quarantine whose log does not go back far enough.
NO_VERSION = -1


@dataclass(frozen=True)
class TableStep:
    """What happens to one table. is_undone: whether it has later commits that change rows. undone: these, in words.

    why: the reason, in words, if it goes back further than requested; else empty.
    """

    part: RestorePoint
    is_undone: bool
    undone: list[str]
    why: str


@dataclass(frozen=True)
class RewindPlan:
    """The plan of a rewind. steps: by table, in graph order; empty where there is nothing to undo.

    refusals: what prevents the rewind; empty where it is possible.
    """

    table: str
    moment: datetime
    steps: dict[str, TableStep]
    views: list[str]
    refusals: list[str] = field(default_factory=list)

    @property
    def cut(self) -> dict[str, RestorePoint]:
        return {name: step.part for name, step in self.steps.items()}

    def lines(self) -> list[str]:
        if not self.steps:
            return [
                f"{self.table}: nothing has come since {_time_words(self.moment.timestamp())}, nothing is to be undone"
            ]
        lines = [line for name, step in self.steps.items() for line in _step_lines(name, step)]
        lines += [f"{view} is refreshed" for view in self.views]
        return lines + [f"REFUSED: {refusal}" for refusal in self.refusals]


def plan(engine: Engine, table: Table, tables: Catalog, to: str, replanned: int | None = None) -> RewindPlan:
    """Plans a rewind.

    to: a moment in ISO 8601, UTC without a time zone. replanned: the number of the rewind that is planned again.
    Raises UsageError where the table cannot go back so far, FlowBroken for a damaged log, and Unreachable.
    """
    moment = ranges.parse_time("--to", to)
    if table.is_view:
        raise UsageError(f"{table.name} is a materialized view, which is never rewound but refreshed: jobs/refresh.py")
    below = [reader for reader in tables.below(table.name) if locations.is_stored(reader.name)]
    targets = {target.name: target for target in [table, *below] if not target.is_view}
    timelines = {name: Timeline(name) for name in targets}
    recent_backfills = store.newest(engine, Backfill, limit=MOST_BACKFILLS)
    together: dict[int, dict[str, int]] = {}
    for backfill in recent_backfills:
        if (
            backfill.version is not None
            and backfill.table in timelines
            and backfill.version in timelines[backfill.table].commits
        ):
            together.setdefault(backfill.root, {})[backfill.table] = backfill.version
    consistent = newest_consistent(moment.timestamp(), timelines, targets, list(together.values()))
    steps = {name: _step(target, timelines, consistent) for name, target in targets.items()}
    restored = {name for name, step in steps.items() if step.is_undone}
    if not restored:
        return RewindPlan(table.name, moment, {}, [])
    with database.transaction(engine) as connection:
        refusals = rewinds.blocking_jobs(connection, steps, replanned)
    for name, step in steps.items():
        if step.is_undone or reads(targets[name], restored):
            refusals += _obstacles(targets[name], timelines[name], step.part, restored)
    return RewindPlan(table.name, moment, steps, [reader.name for reader in below if reader.is_view], refusals)


def _step(table: Table, timelines: dict[str, Timeline], consistent: ConsistentVersions) -> TableStep:
    timeline, version = timelines[table.name], consistent.versions[table.name]
    undone = [commit for commit in timeline.after(version) if timeline.changes(commit.version)]
    quarantine, retained = (_companion(name, timeline, version) for name in (table.quarantine, table.retained))
    newest = {flow.flow: newest_generation(locations.checkpoints(flow.flow)) for flow in table.flows}
    generations = {flow: number for flow, number in newest.items() if number is not None}
    part = RestorePoint(version, quarantine, generations, timeline.commits[version].timestamp, retained)
    is_undone = timeline.content(timeline.versions[-1]) != timeline.content(version)
    return TableStep(part, is_undone, list(_undone_words(undone)), consistent.why.get(table.name, ""))


def _companion(name: str, timeline: Timeline, version: int) -> int | None:
    """Returns the version to which a companion of the table goes back, or NO_VERSION; None if it is not stored.

    It keeps the rows of the batches up to this version of the table. Rows of a batch that was not committed at that
    version may remain: the flow's next batch replaces them.
    """
    if not locations.is_stored(name):
        return None
    kept_commits = [commit for number, commit in timeline.commits.items() if number <= version]
    marks = {mark for commit in kept_commits for mark in (_job_key(commit), _window_key(commit))}
    log = DeltaLog(locations.table_path(name))
    restore_version: int | None = log.newest
    for commit in (commit for commit, is_active in commit_history.commits_with_activity(log) if is_active):
        belongs = _belongs(commit, timeline, version, marks)
        if belongs is False:
            restore_version = None
            continue
        restore_version = commit.version if restore_version is None else restore_version
        if belongs:
            break
    return NO_VERSION if restore_version is None else restore_version


def _belongs(commit: Commit, timeline: Timeline, version: int, marks: set[tuple[str, object] | None]) -> bool | None:
    """Returns whether a companion's commit belongs to the kept part of the table; None if it changes no rows."""
    if commit.batch:
        newest_batch = timeline.stand(commit.metadata["flow"], version)
        return newest_batch is not None and newest_batch.batch is not None and commit.batch <= newest_batch.batch
    mark = _job_key(commit)
    return None if mark is None else mark in marks


def _job_key(commit: Commit) -> tuple[str, object] | None:
    """Returns what identifies a replay, backfill or rewind, both in a table and in its companions."""
    metadata = commit.metadata
    if "replay" in metadata:
        return "replay", metadata["replay"]
    key = next((key for key in (BACKFILL, commit_history.REWIND) if key in metadata), None)
    if key is None:
        return None
    # What a full refresh adds to a companion has no key, because old rows count there until the swap.
    return (key, metadata[key]["key"]) if metadata[key].get("key") else _window_key(commit)


def _window_key(commit: Commit) -> tuple[str, object]:
    """Identifies the window in which a commit was made, both in a table and in its companions."""
    return "window", commit.metadata.get("window")


def reads(table: Table, restored: set[str]) -> bool:
    """Returns whether a flow of the table reads one of the restored tables."""
    return any(flow.source.table in restored for flow in table.flows)


def _obstacles(table: Table, timeline: Timeline, part: RestorePoint, restored: set[str]) -> Iterator[str]:
    versions = {table.name: part.version, table.quarantine: part.quarantine, table.retained: part.retained}
    for name, version in versions.items():
        if version is None:
            continue
        log = DeltaLog(locations.table_path(name))
        if version == NO_VERSION:
            yield f"{name}: its log begins with version {log.versions[0]}, behind what is kept: name a later moment"
            continue
        if erased := _erased_after(log, version):
            yield f"{name}: version {erased} erased rows, and version {version} held them: name a moment after that"
        try:
            deleted = delta_source.deleted_files(log, {file.path for file in log.state_at(version).live})
        except FlowBroken as error:
            yield str(error)
            continue
        if deleted:
            yield (
                f"{name}: VACUUM has deleted {len(deleted):,} files of version {version}, {deleted[0]} say: "
                f"name a later moment"
            )
    for flow in table.flows:
        kept_batch, newest = timeline.stand(flow.flow, part.version), timeline.stand(flow.flow, timeline.versions[-1])
        source_is_restored = flow.source.table in restored
        if kept_batch is None and flow.source.begins_late:
            yield f"{flow.flow}: it would start from the beginning, and its source says since when: name a later moment"
        elif not source_is_restored and (kept_batch or newest):
            yield from sources.of(flow).obstacles(
                kept_batch.metadata if kept_batch else None, newest.metadata if newest else None
            )


def _erased_after(log: DeltaLog, version: int) -> int | None:
    """Returns the newest active version after this one that took out the rows of erased subjects."""
    commits = (commit for commit, is_active in commit_history.commits_with_activity(log) if is_active)
    later = takewhile(lambda commit: commit.version > version, commits)
    return next((commit.version for commit in later if commit_history.ERASED in commit.metadata), None)


def _undone_words(undone: list[Commit]) -> Iterator[str]:
    batches = [commit for commit in undone if "batch" in commit.metadata and "flow" in commit.metadata]
    if batches:
        rows = sum(commit.rows or 0 for commit in batches)
        yield f"{len(batches):,} batches with {rows:,} rows are undone and recomputed"
    for commit in undone:
        if commit in batches:
            continue
        kind = commit_kind(commit)
        what = f"version {commit.version} ({commit.operation})"
        if kind == "replay":
            yield f"{what} is undone: the rows that this replay moved are in the quarantine again"
        elif kind == BACKFILL:
            number = commit.metadata[BACKFILL].get("number")
            yield f"{what} is undone: backfill {number} does not come back, run it again where it is wanted"
        elif kind == commit_history.REWIND:
            yield f"{what} is undone: rewind {commit.metadata[kind]['number']}"
        else:
            yield f"{what} is undone and does not come back, as no flow of Sluice wrote it"


def _step_lines(name: str, step: TableStep) -> Iterator[str]:
    further = f", as {step.why}" if step.why else ""
    if not step.is_undone:
        yield f"{name} stays as it is, at what it held at {_time_words(step.part.at)}"
        return
    yield f"{name} goes back to version {step.part.version} of {_time_words(step.part.at)}{further}"
    yield from (f"  {line}" for line in step.undone)


def _time_words(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}Z"


def versions(part: RestorePoint, table: Table) -> dict[str, int]:
    """Returns the versions to which the companions and the table go back, in the order of their restores."""
    companions = {table.quarantine: part.quarantine, table.retained: part.retained}
    return {name: version for name, version in companions.items() if version is not None} | {table.name: part.version}


def holds_version(name: str, version: int) -> bool:
    """Returns whether the table holds the rows of that version, and no later batch counts.

    Commits that only move rows do not matter. A batch that has changed no row matters: its flow has read rows that the
    rewind takes back.
    """
    timeline = Timeline(name)
    if timeline.content(timeline.versions[-1]) != timeline.content(version):
        return False
    commits = commit_history.commits_with_activity(DeltaLog(locations.table_path(name)))
    later = takewhile(lambda entry: entry[0].version > version, commits)
    return not any(is_active and "batch" in commit.metadata for commit, is_active in later)


def was_restored(name: str, rewind: Rewind) -> bool:
    log = DeltaLog(locations.table_path(name))
    return any((commit.metadata.get(REWIND) or {}).get("key") == rewind.key for commit in log.commits())


def flows_to_renew(rewind: Rewind, tables: Iterable[Table]) -> Iterator[Flow]:
    """Yields the flows of these tables that must still begin a new generation.

    These are the flows that write a restored table, and the flows that read one.
    """
    restored = {name for name in rewind.cut if locations.is_stored(name) and was_restored(name, rewind)}
    for table in tables:
        if table.name not in restored and not reads(table, restored):
            continue
        for flow in table.flows:
            old_generation = rewind.cut[table.name].generations.get(flow.flow)
            newest = newest_generation(locations.checkpoints(flow.flow))
            if old_generation is not None and newest is not None and newest <= old_generation:
                yield flow
