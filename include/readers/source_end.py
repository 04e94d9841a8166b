"""Where a flow's source ends now, and whether the flow has read up to there, without a JVM."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from include.errors import Unreachable
from include.readers import checkpoint, landing_folder, position, quarantined_files
from include.readers.delta_log import DeltaLog
from include.readers.kafka import cluster
from include.readers.kafka_broker import NoSuchTopic, Topics
from include.readers.position import Position
from include.settings import settings
from include.spec import Delta, Files, Kafka, Source, Table


def of(source: Source) -> dict[str, Any]:
    """Returns the end of a source, for JSON. A topic, folder or table that does not exist holds nothing.

    Kafka: by topic and partition, the next offset; no empty partition. Delta: the newest version. Files: the
    modification time of the newest file, in ms since 1970. Raises Unreachable.
    """
    if isinstance(source, Kafka):
        return _of_topics(source)
    if isinstance(source, Files):
        times = [file.modified_ms for file in _files(source)]
        return {"modified_ms": max(times)} if times else {}
    if not settings().is_stored(source.table):
        return {}
    return {"version": DeltaLog(settings().table_path(source.table)).newest}


def has_reached(flow: Table, end: dict[str, Any]) -> bool:
    """Returns whether a flow has committed all up to an end of its source, as `of` returns it. Raises Unreachable."""
    if not end:
        return True
    flow_position = position.position_of(flow.flow)
    if flow_position is None or flow_position.offset is None:
        return False
    if isinstance(flow.source, Files):
        return _has_read_files(flow, flow_position, end["modified_ms"])
    if isinstance(flow.source, Delta):
        return has_passed(flow_position.offset, end["version"])
    return has_read_records(flow_position.offset, end)


def has_passed(offset: dict[str, Any], version: int) -> bool:
    """Returns whether a Delta offset lies behind all files of a version."""
    if offset.get("isStartingVersion"):
        # An offset within the first snapshot of a table bears the snapshot's version from its first file on.
        return False
    return int(offset["reservoirVersion"]) > version


def has_read_records(offset: dict[str, Any], end: dict[str, dict[str, int]]) -> bool:
    """Returns whether a Kafka offset covers these ends."""
    read = {topic: checkpoint.positions(offset, topic) for topic in end}
    return all(
        read[topic].get(int(partition), 0) >= after
        for topic, partitions in end.items()
        for partition, after in partitions.items()
    )


def _of_topics(source: Kafka) -> dict[str, Any]:
    topics, ends = Topics(cluster.of(source)), dict[str, dict[str, int]]()
    for name in topics.names(source):
        with suppress(NoSuchTopic):
            spans = topics.offsets(name)
            ends[name] = {str(partition): end for partition, (begin, end) in spans.items() if end > begin}
    return {name: partitions for name, partitions in ends.items() if partitions}


def _files(source: Files) -> list[landing_folder.FolderFile]:
    folder = settings().folder(source.path)
    if "://" not in folder and not Path(folder).exists():
        return []
    try:
        return list(landing_folder.files_in_folder(source).values())
    except Unreachable as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return []
        raise


def _has_read_files(flow: Table, flow_position: Position, modified_ms: int) -> bool:
    unread = quarantined_files.unread_files(flow, flow_position.checkpoint, flow_position.offset)
    return all(file.modified_ms > modified_ms for file in unread)
