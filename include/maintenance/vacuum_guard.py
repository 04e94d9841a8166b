"""The vacuum guard: who still needs which old version of a table, and what may be deleted in spite of them."""

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from include.catalog import Catalog
from include.errors import Broken, Unreachable
from include.readers import active_commits, checkpoint, starting_version
from include.readers.delta_log import Log, Tombstone
from include.settings import settings
from include.spec import Delta

LOG_FILE = re.compile(
    r"\.?(\d{20})\.(?:crc|(?:\d{20}\.compacted\.)?json|checkpoint\.(?:\d{10}\.\d{10}\.)?parquet)(?:\.crc)?"
)
RETENTION = "delta.deletedFileRetentionDuration"
INTERVAL = re.compile(r"(?:interval\s+)?(\d+(?:\.\d+)?)\s+(second|minute|hour|day|week)s?")
SECONDS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800}
PROMISE = "the promised time travel"
# A window is over within an hour; what expires in it counts as expired.
WINDOW_SECONDS = 3_600
# Where the rows of the change feed lie. VACUUM knows them by their age alone.
CHANGES = "_change_data"


@dataclass(frozen=True)
class Consumer:
    """Somebody to whom an old version matters.

    version: it has read up to and including this one; below 0 it needs everything there is.
    since: when it came to stand there, seconds since 1970; None where nobody knows.
    needs_files: whether it goes on from there; else it only looks something up in the log.
    """

    name: str
    version: int
    since: float | None = None
    needs_files: bool = True


def readers(catalog: Catalog, table: str) -> dict[str, Delta]:
    """The flows that read a table, and how."""
    sources = {name: flow.source for name, flow in catalog.flows.items()}
    return {name: one for name, one in sources.items() if isinstance(one, Delta) and one.table == table}


def consumers(
    own: Collection[str],
    log: Log,
    flows: Mapping[str, Delta],
    time_travel_hours: float,
    now: float,
    registered: Iterable[Consumer] = (),
    released: Collection[str] = (),
) -> list[Consumer]:
    """Everybody who counts: the flows that read the table, its own, the promised time travel, and the registered.

    own: the flows that write it. flows: as `readers`. now: seconds since 1970. released: flows that count no
    more, because somebody decided to rebuild them.
    """
    found = [one for flow, source in flows.items() if flow not in released for one in _flow(flow, source)]
    return [*found, *_own_flows(own, log), _time_travel(log, time_travel_hours, now), *registered]


def held_by(consumers: Iterable[Consumer]) -> Consumer | None:
    """The one that keeps the most files from VACUUM: the furthest back, as each also needs what the later ones need."""
    return min((one for one in consumers if one.needs_files), key=lambda one: one.version, default=None)


def files_kept_since(log: Log, consumers: Iterable[Consumer], now: float) -> float | None:
    """The moment, in seconds since 1970, that VACUUM's retention must not end after; None where nothing is held back.

    It is the earliest deletion among the files that were removed behind the version of the consumer furthest back,
    and not the time at which that version was committed: an OPTIMIZE dates its removals when it starts, and appends
    commit while it runs, so a file may be removed in a later version and dated before that one.

    Delta forgets a removal once `delta.deletedFileRetentionDuration` is over. From then on nothing but its own age
    keeps the file, so that counts in its place. Which commit removed a file that only a checkpoint tells of can no
    longer be known, so the commits are read; where one of them is gone, everything is kept. Files of the change feed
    are never removed, so of those behind that version their own age counts, too.
    """
    decisive = held_by(consumers)
    if decisive is None:
        return None
    if decisive.version < 0 or len(log.after(decisive.version)) < log.newest - decisive.version:
        return 0.0
    live = {file.path for file in log.state.live}
    forgotten = now + WINDOW_SECONDS - _seconds(log.state.properties.get(RETENTION, "interval 1 week"))
    remembered = {one.path for one in log.state.tombstones if one.deleted_at > forgotten}
    moments = []
    for one in log.removed_after(decisive.version):
        if one.path in remembered:
            moments.append(one.deleted_at)
        elif one.path not in live and (modified := _modified(log.table / one.path)) is not None:
            moments.append(modified)
    changes = (_modified(log.table / path) for path in _changes_after(log, decisive.version))
    return min([*moments, *filter(None, changes)], default=None)


def dead_files(log: Log) -> list[Tombstone]:
    """The data files that lie in the table's directory and are not in the table, whether or not they ever were.

    `deleted_at` is what VACUUM goes by: when the file was removed, else when it was written.
    """
    live = {file.path for file in log.state.live}
    removed = {one.path: one for one in log.state.tombstones}
    dead = []
    for file in _data_files(log.table):
        path = str(file.relative_to(log.table))
        if path not in live:
            status, tombstone = file.stat(), removed.get(path)
            deleted_at = max(status.st_mtime, tombstone.deleted_at if tombstone else 0.0)
            dead.append(Tombstone(path, status.st_size, deleted_at, tombstone.version if tombstone else None))
    return dead


def would_vacuum(log: Log, retention_seconds: float, now: float) -> list[Tombstone]:
    """The files that VACUUM would delete with that retention."""
    return [file for file in dead_files(log) if file.deleted_at < now - retention_seconds]


def log_needed_from(log: Log, consumers: Iterable[Consumer]) -> int:
    """The oldest version that somebody has to be able to read from the log."""
    return max(0, min((one.version for one in consumers), default=log.newest))


def removable_log_files(log: Log, needed_from: int) -> list[Path]:
    """What of the log nobody needs, in the order in which to delete it; nothing without a checkpoint to begin from."""
    boundary = max((version for version in log.checkpoints if version <= needed_from), default=0)
    # Hadoop's checksums begin with a dot; a version's files go together.
    removable = [
        (int(found[1]), name) for name in log.names if (found := LOG_FILE.fullmatch(name)) and int(found[1]) < boundary
    ]
    return [log.directory / name for _, name in sorted(removable)]


def clean_log(log: Log, needed_from: int) -> list[Path]:
    """Delete what of the log nobody needs, oldest version first, so that no kill leaves a hole in it."""
    removable = removable_log_files(log, needed_from)
    for file in removable:
        file.unlink(missing_ok=True)
    return removable


def _flow(name: str, source: Delta) -> Iterator[Consumer]:
    """Where a flow stands in the table; nothing where it has not begun, so that it will begin with the newest version.

    When it starts again, Spark asks the source for its last batch once more, whose rows it does not look at. So it
    needs the log from the end of the batch before.
    """
    checkpoints = settings().checkpoints(name)
    generation = checkpoint.newest_generation(checkpoints)
    if generation is None:
        return
    directory = checkpoints / str(generation)
    done = checkpoint.last_committed(directory)
    at = None if done is None else _modified(directory / "commits" / str(done))
    try:
        checkpoint.check(directory)
        batch = checkpoint.last_planned(directory) if done is None else done
        offset = None if batch is None else checkpoint.end_offset(directory, batch)
        if offset is None:
            return
        version = _before_first(name, source, offset) if done is None else checkpoint.read_version(offset)
        before = checkpoint.end_offset(directory, done - 1) if done else None
        began = None if before is None else checkpoint.read_version(before)
    except (Broken, Unreachable, KeyError, TypeError, ValueError):
        yield Consumer(f"{name}, whose checkpoint does not say where it stands", -1, at)
        return
    yield Consumer(name, version, at)
    if began is not None:
        yield Consumer(f"{name}, which looks up its last batch when it starts", began, at, needs_files=False)


def _before_first(name: str, source: Delta, offset: dict[str, Any]) -> int:
    """The version before those that a first batch needs when it is replayed. offset: where it ends."""
    begins = starting_version.first_version(name, source)
    # Without a declared beginning it may begin with all of the version before the one in which it ends.
    return int(offset["reservoirVersion"]) - 1 if begins is None else begins - 1


def _own_flows(flows: Collection[str], log: Log) -> Iterator[Consumer]:
    """The newest commit of each that counts."""
    sought, commits = set(flows), (commit for commit, stands in active_commits.commits(log) if stands)
    while sought and (commit := next(commits, None)):
        if (flow := commit.metadata.get("flow")) in sought:
            sought.remove(flow)
            name = f"{flow} itself, which goes on from this commit when its checkpoint is reset"
            yield Consumer(name, commit.version, commit.timestamp, needs_files=False)


def _time_travel(log: Log, hours: float, now: float) -> Consumer:
    behind = bisect_right(log.versions, now - hours * 3_600, key=lambda version: log.commit(version).timestamp)
    version = log.versions[max(0, behind - 1)]
    return Consumer(f"{PROMISE} of {hours:g} hours", version, log.commit(version).timestamp)


def _changes_after(log: Log, version: int) -> Iterator[str]:
    """The files of the change feed that later commits brought."""
    for one in log.after(version):
        yield from (unquote(action["cdc"]["path"]) for action in log.actions(one, b'"cdc"') if "cdc" in action)


def _seconds(interval: str) -> float:
    """The length of a Delta interval; 0, the careful reading, where it is written in some other way."""
    found = INTERVAL.fullmatch(interval.strip().lower())
    return float(found[1]) * SECONDS[found[2]] if found else 0.0


def _data_files(directory: Path) -> Iterator[Path]:
    """As VACUUM lists them: names with a dot or an underscore in front are somebody else's, except of a partition and
    of the change feed.
    """
    for entry in directory.iterdir():
        is_ours = "=" in entry.name or entry.name == CHANGES
        if entry.name.startswith(".") or (entry.name.startswith("_") and not is_ours):
            continue
        if entry.is_dir():
            yield from _data_files(entry)
        else:
            yield entry


def _modified(file: Path) -> float | None:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return None
