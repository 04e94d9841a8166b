"""Where a flow's source ends now, and whether the flow has read up to there, without a JVM."""

import math
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.dataset

from include.checkpoints import checkpoint_files, landing_folder
from include.checkpoints.checkpoint_files import Position
from include.checkpoints.landing_folder import FolderFile
from include.delta import stored_table
from include.delta.delta_log import DeltaLog
from include.errors import Unreachable
from include.kafka import cluster
from include.kafka.broker import NoSuchTopic, Topics
from include.lake.paths import LakePath
from include.settings import settings
from include.spec import Delta, Files, Kafka, Source, Table


def named(
    table: Table, files: Iterable[FolderFile], through: tuple[float, float] = (math.inf, math.inf)
) -> set[tuple[str, str, int]]:
    """Returns what the quarantine says of these files: name, rule, and modification time in milliseconds since 1970.

    through: generation and batch of the newest rows that count.
    """
    names = [relative_name(table, file.path) for file in files]
    if not names or not settings().is_stored(table.quarantine):
        return set()
    stored = stored_table.dataset(table.quarantine)
    rows = stored.to_table(filter=pyarrow.dataset.field("_filename").isin(names)).to_pylist()
    return {
        (row["_filename"], rule, round(row["modification_time"].timestamp() * 1000))
        for row in rows
        for rule in row["_rules"]
        if row["modification_time"] and (row["_generation"], row["_batch"]) <= through
    }


def unread_files(table: Table, checkpoint: LakePath | None, end: Any) -> list[FolderFile]:
    """Returns the files in the folder that no batch up to the source offset `end` has read.

    A file that Spark passes over is read once the quarantine names it. checkpoint: None if there is none yet. Raises
    Unreachable and FlowBroken.
    """
    assert isinstance(table.source, Files)
    read_paths = {file.path for file in landing_folder.planned_files(checkpoint, end)} if checkpoint else set()
    files = [file for file in landing_folder.matching_files(table.source) if file.path not in read_paths]
    known = named(table, [file for file in files if file.problem])
    return [file for file in files if (relative_name(table, file.path), file.problem, file.modified_ms) not in known]


def relative_name(table: Table, path: str) -> str:
    """Returns the path below the folder of the source."""
    assert isinstance(table.source, Files)
    folder = landing_folder.file_system(settings().folder(table.source.path))[1]
    return path.removeprefix(f"{folder}/")


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
    flow_position = checkpoint_files.position_of(flow.flow)
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
    read = {topic: checkpoint_files.positions(offset, topic) for topic in end}
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
    unread = unread_files(flow, flow_position.checkpoint, flow_position.offset)
    return all(file.modified_ms > modified_ms for file in unread)
