"""The files that the quarantine of a table names, read without a JVM."""

import math
from collections.abc import Iterable
from typing import Any

import pyarrow.dataset

from include.lake.object_path import LakePath
from include.readers import landing_folder, stored_table
from include.readers.landing_folder import FolderFile
from include.settings import settings
from include.spec import Files, Table


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
