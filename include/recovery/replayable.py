"""Checks whether a flow can read its source again from an earlier position: whether all data is still there."""

from collections.abc import Iterator
from functools import singledispatch
from typing import Any
from urllib.parse import unquote

from include.checkpoints import checkpoint_files, landing_folder, offset_ranges
from include.delta import commit_history
from include.delta.delta_log import DeltaLog
from include.errors import FlowBroken
from include.kafka import broker, cluster, retention, topics
from include.kafka.retention import Limits
from include.lake import directories, locations
from include.spec import Delta, Files, Kafka, Table

# The time that a rewind, and its flow's first reads, may take before Kafka deletes the records.
LEAST_SECONDS = 3_600


def obstacles(flow: Table, metadata: dict[str, Any] | None, newest: dict[str, Any] | None) -> Iterator[str]:
    """Yields why the flow cannot read again.

    metadata: the userMetadata of the commit to continue from, None for the source's beginning.
    newest: the userMetadata of the flow's newest commit. Raises Unreachable.
    """
    if metadata is None and newest is None:
        return
    yield from _of_source(flow.source, flow, metadata, newest)


@singledispatch
def _of_source(
    source: object, flow: Table, metadata: dict[str, Any] | None, newest: dict[str, Any] | None
) -> Iterator[str]:
    raise TypeError(f"{flow.flow} reads {source}")


@_of_source.register
def _of_topics(
    source: Kafka, flow: Table, metadata: dict[str, Any] | None, newest: dict[str, Any] | None
) -> Iterator[str]:
    current, previous = topics.source_identity(source), (metadata or newest or {}).get("source") or {}
    if not topics.is_continuation(previous, current):
        yield f"{flow.flow}: a topic that it has read is gone, or was recreated"
        return
    kafka_cluster = cluster.of(source)
    for topic in current["topics"]:
        if Limits.of(broker.Topics(kafka_cluster).configuration(topic)).compacts:
            yield f"{flow.flow}: topic '{topic}' is compacted, so it may hold other records than were read"
        read = checkpoint_files.positions(metadata["source_to"] if metadata else None, topic)
        for clock in retention.clock(kafka_cluster, topic, read):
            seconds = clock.expires_in_seconds
            expires = clock.unread > 0 and seconds is not None and seconds < LEAST_SECONDS
            if expires or not clock.begin <= clock.position <= clock.end:
                yield f"{flow.flow}: {topic}/{clock.partition} cannot be read again from {clock.position}: {clock.why}"


@_of_source.register
def _of_files(
    source: Files, flow: Table, metadata: dict[str, Any] | None, newest: dict[str, Any] | None
) -> Iterator[str]:
    try:
        kept_files, read_files = (_files_read(flow, commit_metadata) for commit_metadata in (metadata, newest))
    except FlowBroken as error:
        yield f"{flow.flow}: which files would be read again is not known: {error}"
        return
    in_folder = landing_folder.files_in_folder(source)
    deleted = sorted(path for path in read_files - kept_files if path not in in_folder)
    if deleted:
        yield f"{flow.flow}: {len(deleted):,} files that would be read again lie there no more, {deleted[0]} say"


def _files_read(flow: Table, metadata: dict[str, Any] | None) -> set[str]:
    if metadata is None:
        return set()
    files = landing_folder.planned_files(
        locations.checkpoints(flow.flow) / str(metadata["generation"]), metadata["source_to"]
    )
    return {file.path for file in files}


@_of_source.register
def _of_table(
    source: Delta, flow: Table, metadata: dict[str, Any] | None, newest: dict[str, Any] | None
) -> Iterator[str]:
    if metadata is None:
        return
    try:
        yield from _of_versions(source, flow, metadata["source_to"])
    except FlowBroken as error:
        yield f"{flow.flow}: {error}"


def _of_versions(source: Delta, flow: Table, offset: dict[str, Any]) -> Iterator[str]:
    log = DeltaLog(locations.table_path(source.table))
    version = offset_ranges.delta_position(offset)[0]
    first = version + bool(offset.get("isStartingVersion"))
    if log.versions[0] > max(first - 1, 0):
        yield f"{flow.flow}: the log of {source.table} begins with version {log.versions[0]}, and {first} is to be read"
        return
    paths = {file.path for file in log.state_at(max(first - 1, 0)).live}
    for later in log.after(first - 1):
        commit = log.commit(later)
        removes_data = any(action.get("remove", {}).get("dataChange") for action in log.actions(later, b'"remove"'))
        if (
            commit_history.REWIND in commit.metadata
            or commit.operation == "RESTORE"
            or (removes_data and not source.changes)
        ):
            yield (
                f"{flow.flow}: version {later} ({commit.operation}) of {source.table} has replaced what would be read "
                f"again: rewind {source.table} as well, or make the rows again by a backfill of {flow.name}"
            )
            return
        paths |= {
            unquote(action[kind]["path"]) for action in log.actions(later) for kind in ("add", "cdc") if kind in action
        }
    if deleted := next(iter(deleted_files(log, paths)), None):
        yield f"{flow.flow}: files of {source.table} that would be read again are deleted, {deleted} say"


def deleted_files(log: DeltaLog, paths: set[str]) -> list[str]:
    """Returns the data files that were deleted. Live files are assumed to exist."""
    not_live = paths - {file.path for file in log.state.live}
    return sorted(directories.missing(log.table, not_live))
