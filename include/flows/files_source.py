"""A folder of files as the source of a flow."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from unicodedata import category
from urllib.parse import quote

import pyarrow.compute as pc

from include.checkpoints import checkpoint_files, landing_folder
from include.checkpoints.checkpoint_files import Position
from include.checkpoints.landing_folder import FolderFile, PlannedFile
from include.delta import stored_table
from include.errors import FlowBroken, Unreachable
from include.flows.batches import BatchRecord
from include.flows.lag import Lag, Movement, SourceSnapshot
from include.flows.source import FlowSource, ReadData, StartPosition, commit_of
from include.lake import locations
from include.lake.paths import LakePath
from include.settings import settings
from include.spec import Files, Flow

# Unicode categories of spaces, and of separators of lines and paragraphs.
SEPARATORS = ("Zs", "Zl", "Zp")


class FilesSource(FlowSource):
    def __init__(self, flow: Flow) -> None:
        super().__init__(flow)
        self._source = flow.source_as(Files)

    def identity(self) -> dict[str, Any]:
        return {"folder": settings().folder(self._source.path)}

    def _after(self, metadata: dict[str, Any]) -> StartPosition:
        held = tuple(_held_files(self._flow, metadata))
        return StartPosition({"logOffset": 0}, commit_of(metadata), files=held)

    def end(self) -> dict[str, Any]:
        """Returns the modification time of the newest file, in ms since 1970."""
        times = [file.modified_ms for file in _files(self._source)]
        return {"modified_ms": max(times)} if times else {}

    def _has_passed(self, flow_position: Position, end: dict[str, Any]) -> bool:
        unread = unread_files(self._flow, flow_position.checkpoint, flow_position.offset)
        return all(file.modified_ms > end["modified_ms"] for file in unread)

    def lag(self, lag: Lag, flow_position: Position | None, sources: SourceSnapshot) -> Lag:
        checkpoint_path, end = (flow_position.checkpoint, flow_position.offset) if flow_position else (None, None)
        waiting = unread_files(self._flow, checkpoint_path, end)
        oldest_at = min((file.modified_ms / 1000 for file in waiting), default=None)
        size = sum(file.bytes for file in waiting)
        return replace(lag, count=len(waiting), files=len(waiting), bytes=size, seconds=sources.age(oldest_at))

    def movement(self, lag: Lag, metadata: dict[str, Any], sources: SourceSnapshot) -> Movement | None:
        flow_position = checkpoint_files.position_of(self._flow.flow)
        if flow_position is None or flow_position.generation != metadata["generation"]:
            return None
        read_files = landing_folder.planned_files(flow_position.checkpoint, flow_position.offset)
        waiting = unread_files(self._flow, flow_position.checkpoint, flow_position.offset)
        dates_ms = [file.found_ms for file in read_files] + [file.modified_ms for file in waiting]
        arrived = sum(date_ms > sources.since * 1000 for date_ms in dates_ms)
        read = sum(file.entry > int(metadata["source_to"]["logOffset"]) for file in read_files)
        return Movement(lag.unit, arrived, read, len(waiting))

    def read_by(self, batches: Sequence[BatchRecord]) -> ReadData:
        names: list[str] = []
        try:
            for batch in batches:
                checkpoint = locations.checkpoints(batch.flow) / str(batch.generation)
                files = landing_folder.files_of_batch(checkpoint, batch.source_from, batch.source_to)
                names += [file.path for file in files]
        except FlowBroken as error:
            return ReadData(files=names, note=str(error))
        return ReadData(files=names)

    def datasets(self, offset: Any) -> list[str]:
        return [settings().folder(self._source.path)]

    def obstacles(self, metadata: dict[str, Any] | None, newest: dict[str, Any] | None) -> Iterator[str]:
        flow = self._flow.flow
        try:
            kept_files, read_files = (_files_read(flow, commit_metadata) for commit_metadata in (metadata, newest))
        except FlowBroken as error:
            yield f"{flow}: which files would be read again is not known: {error}"
            return
        in_folder = landing_folder.files_in_folder(self._source)
        deleted = sorted(path for path in read_files - kept_files if path not in in_folder)
        if deleted:
            yield f"{flow}: {len(deleted):,} files that would be read again lie there no more, {deleted[0]} say"


def named(
    table: Flow, files: Iterable[FolderFile], through: tuple[float, float] = (math.inf, math.inf)
) -> set[tuple[str, str, datetime | None]]:
    """Returns what the quarantine says of these files: name, rule and date, which is None if no table can hold it.

    through: generation and batch of the newest rows that count.
    """
    names = [relative_name(table, file.path) for file in files]
    if not names or not locations.is_stored(table.quarantine):
        return set()
    stored = stored_table.dataset(table.quarantine)
    rows = stored.to_table(filter=pc.field("_filename").isin(names)).to_pylist()
    return {
        (row["_filename"], rule, row["modification_time"])
        for row in rows
        for rule in row["_rules"]
        if (row["_generation"], row["_batch"]) <= through
    }


def unread_files(table: Flow, checkpoint: LakePath | None, end: Any) -> list[FolderFile]:
    """Returns the files in the folder that no batch up to the source offset `end` has read.

    A file that Spark passes over is read once the quarantine names it. checkpoint: None if there is none yet. Raises
    Unreachable and FlowBroken.
    """
    read_paths = {file.path for file in landing_folder.planned_files(checkpoint, end)} if checkpoint else set()
    files = [file for file in landing_folder.matching_files(table.source_as(Files)) if file.path not in read_paths]
    known = named(table, [file for file in files if file.problem])
    return [file for file in files if (relative_name(table, file.path), file.problem, file.date) not in known]


def relative_name(table: Flow, path: str) -> str:
    """Returns the path below the folder of the source."""
    folder = landing_folder.file_system(settings().folder(table.source_as(Files).path))[1]
    return path.removeprefix(f"{folder}/")


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


def _files_read(flow: str, metadata: dict[str, Any] | None) -> set[str]:
    if metadata is None:
        return set()
    checkpoint = locations.checkpoints(flow) / str(metadata["generation"])
    return {file.path for file in landing_folder.planned_files(checkpoint, metadata["source_to"])}


def _held_files(table: Flow, metadata: dict[str, Any]) -> list[PlannedFile]:
    """Returns the files up to the last commit, from its checkpoint or, without it, from the table's `_filename`."""
    checkpoint = locations.checkpoints(table.flow) / str(metadata["generation"])
    with suppress(FlowBroken):
        if files := landing_folder.planned_files(checkpoint, metadata["source_to"]):
            return files
    source = table.source_as(Files)
    folder = settings().folder(source.path)
    path = landing_folder.file_system(folder)[1]
    modified_ms = {
        file.path.removeprefix(f"{path}/"): file.modified_ms for file in landing_folder.files_in_folder(source).values()
    }
    return [
        PlannedFile(_java_uri(folder, name), modified_ms.get(name, 0), 0)
        for name in sorted(_stored_file_names(table, metadata))
    ]


def _java_uri(folder: str, name: str) -> str:
    """Returns the file's URI as Java writes it. Java escapes fewer characters than Python does: those that a URI may
    not have, control characters and every kind of blank.
    """
    path = name if "://" in folder else f"{folder}/{name}"
    quoted = re.sub(r"[\x00-\x20\x7f-\x9f\"<>\[\]{}|\\^`#?%]", lambda match: quote(match[0]), path)
    quoted = "".join(quote(character) if category(character) in SEPARATORS else character for character in quoted)
    return f"{folder}/{quoted}" if "://" in folder else f"file://{quoted}"


def _stored_file_names(table: Flow, metadata: dict[str, Any]) -> set[str]:
    """Returns the files with rows in the table, or with committed rows in its quarantine."""

    name = pc.field("_filename")
    stored = stored_table.dataset(table.name)
    quarantined = stored_table.dataset(table.quarantine)
    generation, batch = (pc.field(column) for column in ("_generation", "_batch"))
    last_generation = int(metadata["generation"])
    is_committed = (generation < last_generation) | (
        (generation == last_generation) & (batch <= int(metadata["batch"]))
    )
    names: set[str] = set()
    for rows in (
        stored.to_batches(columns={"_filename": name}),
        quarantined.to_batches(columns={"_filename": name}, filter=is_committed),
    ):
        for record_batch in rows:
            names.update(record_batch.column(0).unique().to_pylist())
    return names
