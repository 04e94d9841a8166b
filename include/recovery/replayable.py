"""Whether a flow can read again what came behind a place in its source: whether that is all still there, unchanged."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from include.errors import Broken
from include.readers import (
    active_commits,
    checkpoint,
    kafka_broker,
    kafka_retention,
    landing_folder,
    offset_ranges,
    topics,
)
from include.readers.delta_log import Log
from include.readers.kafka_retention import Limits
from include.settings import settings
from include.spec import Delta, Files, Kafka, Table

# Time enough for a rewind to be done and for its flow to read what Kafka is about to delete.
LEAST_SECONDS = 3_600


def obstacles(flow: Table, stamp: dict[str, Any] | None, newest: dict[str, Any] | None) -> Iterator[str]:
    """Why it cannot, in sentences. stamp: of the commit behind which it would go on, None for its beginning.

    newest: of its newest commit. Raises Unreachable.
    """
    if stamp is None and newest is None:
        return
    if isinstance(flow.source, Kafka):
        yield from _of_topics(flow, flow.source, stamp, newest)
    elif isinstance(flow.source, Files):
        yield from _of_files(flow, flow.source, stamp, newest)
    elif isinstance(flow.source, Delta) and stamp is not None:
        try:
            yield from _of_table(flow, flow.source, stamp["source_to"])
        except Broken as error:
            yield f"{flow.flow}: {error}"


def _of_topics(
    flow: Table, source: Kafka, stamp: dict[str, Any] | None, newest: dict[str, Any] | None
) -> Iterator[str]:
    now, was = topics.source(source), (stamp or newest or {}).get("source") or {}
    if not topics.goes_on(was, now):
        yield f"{flow.flow}: a topic that it has read is gone, or was created anew"
        return
    for topic in now["topics"]:
        if Limits.of(kafka_broker.Topics(settings().kafka).configuration(topic)).compacts:
            yield f"{flow.flow}: topic '{topic}' is compacted, so it may hold other records than were read"
        read = checkpoint.positions(stamp["source_to"] if stamp else None, topic)
        for clock in kafka_retention.clock(settings().kafka, topic, read):
            seconds = clock.expires_in_seconds
            expires = clock.unread > 0 and seconds is not None and seconds < LEAST_SECONDS
            if expires or not clock.begin <= clock.position <= clock.end:
                yield f"{flow.flow}: {topic}/{clock.partition} cannot be read again from {clock.position}: {clock.why}"


def _of_files(flow: Table, source: Files, stamp: dict[str, Any] | None, newest: dict[str, Any] | None) -> Iterator[str]:
    try:
        kept, read = (_taken(flow, one) for one in (stamp, newest))
    except Broken as error:
        yield f"{flow.flow}: which files would be read again is not known: {error}"
        return
    lying = landing_folder.landed(source)
    gone = sorted(path for path in read - kept if path not in lying)
    if gone:
        yield f"{flow.flow}: {len(gone):,} files that would be read again lie there no more, {gone[0]} say"


def _taken(flow: Table, stamp: dict[str, Any] | None) -> set[str]:
    if stamp is None:
        return set()
    held = landing_folder.taken(settings().checkpoints(flow.flow) / str(stamp["generation"]), stamp["source_to"])
    return {one.path for one in held}


def _of_table(flow: Table, source: Delta, offset: dict[str, Any]) -> Iterator[str]:
    log = Log(settings().table_path(source.table))
    version = offset_ranges.place(offset)[0]
    first = version + bool(offset.get("isStartingVersion"))
    if log.versions[0] > max(first - 1, 0):
        yield f"{flow.flow}: the log of {source.table} begins with version {log.versions[0]}, and {first} is to be read"
        return
    wanted = {file.path for file in log.state_at(max(first - 1, 0)).live}
    for later in log.after(first - 1):
        commit = log.commit(later)
        removes = any(one.get("remove", {}).get("dataChange") for one in log.actions(later, b'"remove"'))
        if (
            active_commits.REWIND in commit.metadata
            or commit.operation == "RESTORE"
            or (removes and not source.changes)
        ):
            yield (
                f"{flow.flow}: version {later} ({commit.operation}) of {source.table} has replaced what would be read "
                f"again: rewind {source.table} as well, or make the rows again by a backfill of {flow.name}"
            )
            return
        wanted |= {unquote(one[kind]["path"]) for one in log.actions(later) for kind in ("add", "cdc") if kind in one}
    if gone := next(iter(missing(log, wanted)), None):
        yield f"{flow.flow}: files of {source.table} that would be read again are deleted, {gone} say"


def missing(log: Log, wanted: set[str]) -> list[str]:
    """Those of these data files that are deleted; what is live is there."""
    old = wanted - {file.path for file in log.state.live}
    return sorted(path for path in old if not (log.table / path).exists())
