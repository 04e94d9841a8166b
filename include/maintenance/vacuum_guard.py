"""Finds who still needs which old version of a table, and what may be deleted nevertheless."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from include.catalog import Catalog
from include.checkpoints import checkpoint_files
from include.delta import commit_history, versions
from include.delta.delta_log import DeltaLog, Tombstone
from include.errors import FlowBroken, Unreachable
from include.lake import directories, locations
from include.lake.paths import LakePath
from include.spec import Delta

LOG_FILE = re.compile(
    r"\.?(\d{20})\.(?:crc|(?:\d{20}\.compacted\.)?json|checkpoint\.(?:\d{10}\.\d{10}\.)?parquet)(?:\.crc)?"
)
RETENTION = "delta.deletedFileRetentionDuration"
INTERVAL = re.compile(r"(?:interval\s+)?(\d+(?:\.\d+)?)\s+(second|minute|hour|day|week)s?")
SECONDS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800}
PROMISE = "the promised time travel"
# The directory of the change data feed. VACUUM decides about its files by age alone.
CHANGES = "_change_data"


@dataclass(frozen=True)
class Consumer:
    """A consumer that needs old versions of a table.

    version: the newest version that it has read. Below 0 it needs everything.
    since: when it reached that version, in seconds since 1970; None where unknown.
    needs_files: whether it will read data files. Else it needs the log only.
    is_declared: whether a table file declares the version, so that it is never held for too long.
    """

    name: str
    version: int
    since: float | None = None
    needs_files: bool = True
    is_declared: bool = False


def readers(catalog: Catalog, table: str) -> dict[str, Delta]:
    """Returns the flows that read a table, with their sources."""
    return {name: flow.source_as(Delta) for name, flow in catalog.flows.items() if flow.source.table == table}


def consumers(
    writers: Collection[str],
    log: DeltaLog,
    flows: Mapping[str, Delta],
    time_travel_hours: float,
    now_seconds: float,
    registered: Iterable[Consumer] = (),
    released: Collection[str] = (),
) -> list[Consumer]:
    """Returns all consumers: reading flows, writing flows, the promised time travel and registered readers.

    writers: the flows that write the table. flows: as `readers`. now_seconds: since 1970.
    released: flows that no longer count, because somebody decided to rebuild them.
    """
    reading = [
        consumer for flow, source in flows.items() if flow not in released for consumer in _reading_flow(flow, source)
    ]
    return [*reading, *_writing_flows(writers, log), _time_travel(log, time_travel_hours, now_seconds), *registered]


def oldest_consumer(consumers: Iterable[Consumer]) -> Consumer | None:
    """Returns the consumer that needs the oldest version. It also keeps all files that the others need."""
    return min(
        (consumer for consumer in consumers if consumer.needs_files),
        key=lambda consumer: consumer.version,
        default=None,
    )


def files_kept_since(
    log: DeltaLog, consumers: Iterable[Consumer], now_seconds: float, window_seconds: float
) -> float | None:
    """Returns the time, in seconds since 1970, from which VACUUM must keep deleted files; None for no limit.

    window_seconds: VACUUM runs up to so long after `now_seconds`. What expires until then counts as expired.

    This is the earliest deletion among the files removed after the version of the oldest consumer. The commit time of
    that version is not enough: OPTIMIZE dates its removals when it starts, so a later commit can have earlier deletion
    times.

    Delta forgets a tombstone after `delta.deletedFileRetentionDuration`. Then VACUUM goes by the file's modification
    time, so that time counts instead. A tombstone in a checkpoint does not name its commit, so the commits themselves
    are read. If one of them is missing, everything is kept. Change feed files have no tombstones, so their modification
    times count.
    """
    oldest = oldest_consumer(consumers)
    if oldest is None:
        return None
    if oldest.version < 0 or len(log.after(oldest.version)) < log.newest - oldest.version:
        return 0.0
    live = {file.path for file in log.state.live}
    tombstones_seconds = _seconds(log.state.properties.get(RETENTION, "interval 1 week"))
    forgotten_before = now_seconds + window_seconds - tombstones_seconds
    remembered_paths = {tombstone.path for tombstone in log.state.tombstones if tombstone.deleted_at > forgotten_before}
    times = []
    for tombstone in log.removed_after(oldest.version):
        if tombstone.path in remembered_paths:
            times.append(tombstone.deleted_at)
        elif tombstone.path not in live and (modified := _modified(log.table / tombstone.path)) is not None:
            times.append(modified)
    change_times = (_modified(log.table / path) for path in _changes_after(log, oldest.version))
    return min([*times, *filter(None, change_times)], default=None)


def dead_files(log: DeltaLog) -> list[Tombstone]:
    """Returns the data files in the table's directory that are not in the table, including those that never were.

    `deleted_at` is the time by which VACUUM decides: the file's removal, or else its modification.
    """
    live = {file.path for file in log.state.live}
    removed = {tombstone.path: tombstone for tombstone in log.state.tombstones}
    dead = []
    for file in directories.files(log.table, lambda path: path in live or _is_no_data(path)):
        tombstone = removed.get(file.path)
        deleted_at = max(file.modified_at, tombstone.deleted_at if tombstone else 0.0)
        dead.append(Tombstone(file.path, file.bytes, deleted_at, tombstone.version if tombstone else None))
    return dead


def would_vacuum(log: DeltaLog, retention_seconds: float, now_seconds: float) -> list[Tombstone]:
    """Returns the files that VACUUM would delete with this retention. now_seconds: since 1970."""
    return [file for file in dead_files(log) if file.deleted_at < now_seconds - retention_seconds]


def log_needed_from(log: DeltaLog, consumers: Iterable[Consumer]) -> int:
    """Returns the oldest version that a consumer must be able to read from the log."""
    return max(0, min((consumer.version for consumer in consumers), default=log.newest))


def removable_log_files(log: DeltaLog, needed_from: int) -> list[LakePath]:
    """Returns the log files before the newest checkpoint that covers `needed_from`, in deletion order."""
    boundary = max((version for version in log.checkpoints if version <= needed_from), default=0)
    # Hadoop's checksum files begin with a dot. Sorting by version deletes the files of a version together.
    removable = [
        (int(match[1]), name) for name in log.names if (match := LOG_FILE.fullmatch(name)) and int(match[1]) < boundary
    ]
    return [log.directory / name for _, name in sorted(removable)]


def clean_log(log: DeltaLog, needed_from: int) -> list[LakePath]:
    """Deletes the log files that nobody needs, oldest version first, so that an interruption leaves no gap."""
    removable = removable_log_files(log, needed_from)
    for file in removable:
        file.unlink(missing_ok=True)
    return removable


def _reading_flow(name: str, source: Delta) -> Iterator[Consumer]:
    """Yields the versions that a reading flow needs; nothing before its first batch.

    On restart, Spark requests the last batch from the source again without reading its rows. So the flow needs the log
    from the end of the previous batch on.
    """
    checkpoints = locations.checkpoints(name)
    generation = checkpoint_files.newest_generation(checkpoints)
    if generation is None:
        return
    directory = checkpoints / str(generation)
    committed = checkpoint_files.last_committed(directory)
    committed_at = None if committed is None else _modified(directory / "commits" / str(committed))
    try:
        checkpoint_files.check(directory)
        batch = checkpoint_files.last_planned(directory) if committed is None else committed
        offset = None if batch is None else checkpoint_files.end_offset(directory, batch)
        if offset is None:
            return
        version = _before_first(name, source, offset) if committed is None else checkpoint_files.read_version(offset)
        previous_end = checkpoint_files.end_offset(directory, committed - 1) if committed else None
        previous_version = None if previous_end is None else checkpoint_files.read_version(previous_end)
    except (FlowBroken, Unreachable, KeyError, TypeError, ValueError):
        yield Consumer(f"{name}, whose checkpoint does not say where it stands", -1, committed_at)
        return
    yield Consumer(name, version, committed_at)
    if previous_version is not None:
        yield Consumer(
            f"{name}, which looks up its last batch when it starts", previous_version, committed_at, needs_files=False
        )


def _before_first(name: str, source: Delta, offset: dict[str, Any]) -> int:
    """Returns the version before those that a replay of the first batch needs. offset: the batch's end."""
    declared_start = versions.first_version(name, source)
    # Without a declared start, its snapshot may be the version before the one in which the batch ends.
    return int(offset["reservoirVersion"]) - 1 if declared_start is None else declared_start - 1


def _writing_flows(flows: Collection[str], log: DeltaLog) -> Iterator[Consumer]:
    """Yields the newest active commit of each writing flow."""
    remaining, commits = (
        set(flows),
        (commit for commit, is_active in commit_history.commits_with_activity(log) if is_active),
    )
    while remaining and (commit := next(commits, None)):
        if (flow := commit.metadata.get("flow")) in remaining:
            remaining.remove(flow)
            name = f"{flow} itself, which goes on from this commit when its checkpoint is reset"
            yield Consumer(name, commit.version, commit.timestamp, needs_files=False)


def _time_travel(log: DeltaLog, hours: float, now_seconds: float) -> Consumer:
    found = log.version_at(now_seconds - hours * 3_600)
    version = log.versions[0] if found is None else found
    return Consumer(f"{PROMISE} of {hours:g} hours", version, log.commit(version).timestamp, is_declared=True)


def _changes_after(log: DeltaLog, version: int) -> Iterator[str]:
    """Yields the change feed files that later commits added."""
    for later in log.after(version):
        yield from (unquote(action["cdc"]["path"]) for action in log.actions(later, b'"cdc"') if "cdc" in action)


def _seconds(interval: str) -> float:
    """Returns the seconds of a Delta interval; 0, the careful value, for an unknown notation."""
    match = INTERVAL.fullmatch(interval.strip().lower())
    return float(match[1]) * SECONDS[match[2]] if match else 0.0


def _is_no_data(path: str) -> bool:
    """Whether VACUUM skips the file or directory: by a leading dot or underscore, except partition directories and the
    change data feed.
    """
    name = path.rpartition("/")[2]
    is_data_directory = "=" in name or name == CHANGES
    return name.startswith(".") or (name.startswith("_") and not is_data_directory)


def _modified(file: LakePath) -> float | None:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return None
