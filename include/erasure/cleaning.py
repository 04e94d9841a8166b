"""Deletes or rewrites the objects that still hold a subject after its rows were taken out of the tables.

What is not named here is left alone: the scan after it finds it, and the erasure then fails with its name.
"""

import json
import os
import shutil
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeGuard

from sqlalchemy import Engine, MetaData, Text, select, update
from sqlalchemy import String as SqlString

from include.control.leases import process
from include.control.store import database
from include.control.store.schema import audits
from include.delta.delta_log import DeltaLog
from include.erasure.needles import Needles
from include.errors import Unreachable
from include.lake import locations
from include.lake.paths import LakePath
from include.settings import settings

LOG = "_delta_log"
# What stands for the bytes of a subject in a text that is kept.
MASK = b"*"
# How long a database may be in use before it is written again.
BUSY_SECONDS = 20
STATISTICS = ("add", "remove")


def is_text_of_runs(file: LakePath) -> TypeGuard[Path]:
    """Whether it is a log, a journal of progress or a record of lineage: text that drivers add lines to."""
    config = settings()
    if not isinstance(file, Path):
        return False
    return any(file.is_relative_to(folder) for folder in (config.logs, config.journals, config.home / "lineage"))


def delete_leftovers() -> list[str]:
    """Deletes the temporary files of processes that have ended. Returns the names of their folders."""
    temporary = settings().temporary
    folders = [folder for folder in temporary.iterdir() if process.is_leftover(folder)] if temporary.is_dir() else []
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return [folder.name for folder in folders]


def mask(file: Path, needles: Needles) -> int:
    """Overwrites a subject in a text by as many other bytes, in place: who adds lines to the file goes on.

    Returns how often.
    """
    data = file.read_bytes()
    hits = list(needles.hits(data, is_text=True))
    with file.open("r+b") as content:
        for hit in hits:
            content.seek(hit.begin)
            content.write(MASK * (hit.end - hit.begin))
        content.flush()
        os.fsync(content.fileno())
    return len(hits)


def clean_table(name: str, needles: Needles, places: Iterable[LakePath]) -> list[str]:
    """Deletes and rewrites what holds a subject in the directory of a stored table. The caller has the table alone, no
    reader needs its old files, and its newest checkpoint was made after the rows were taken out.

    Returns the names of the files. What the table itself still holds stays.
    """
    log = DeltaLog(locations.table_path(name))
    live, done = {file.path for file in log.state.live}, list[str]()
    newest_checkpoint = max(log.checkpoints, default=-1)
    for file in places:
        path = str(file).removeprefix(f"{log.table}/")
        if path.startswith(f"{LOG}/"):
            is_done = _clean_log_file(file, needles, newest_checkpoint)
        elif is_done := path not in live:
            _delete(file)
        if is_done:
            done.append(path)
    return done


def _clean_log_file(file: LakePath, needles: Needles, newest_checkpoint: int) -> bool:
    name = file.name.lstrip(".")
    number = name.partition(".")[0]
    version = int(number) if number.isdecimal() else None
    if name.endswith(".json") and version is not None and name == f"{version:020}.json":
        return _rewrite_commit(file, needles)
    # Only the newest checkpoint is needed. A checksum is optional, and is made again with the next commit.
    if version is not None and (name.endswith(".crc") or version < newest_checkpoint):
        _delete(file)
        return True
    return False


def _rewrite_commit(file: LakePath, needles: Needles) -> bool:
    """Takes the statistics with a subject out of a commit, and masks it elsewhere. Rows stay counted."""
    lines = file.read_bytes().splitlines()
    new = b"\n".join(_without_subject(line, needles) for line in lines) + b"\n"
    if not isinstance(file, Path):
        # A store replaces an object as a whole, and gives it a new date.
        file.write_bytes(new)
        return True
    status = file.stat()
    draft = file.with_name(f".{file.name}.erased")
    draft.write_bytes(new)
    # The time of the file is the time of the commit.
    os.utime(draft, ns=(status.st_atime_ns, status.st_mtime_ns))
    # Hadoop compares a file with its checksum, if there is one.
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    draft.rename(file)
    return True


def _without_subject(line: bytes, needles: Needles) -> bytes:
    if not _holds(needles, line):
        return line
    action: dict[str, Any] = json.loads(line)
    for kind in STATISTICS:
        if stats := action.get(kind, {}).get("stats"):
            action[kind]["stats"] = json.dumps({"numRecords": json.loads(stats)["numRecords"]})
    masked = bytearray(json.dumps(action, separators=(",", ":"), ensure_ascii=False).encode())
    for hit in list(needles.hits(bytes(masked), is_text=True)):
        masked[hit.begin : hit.end] = MASK * (hit.end - hit.begin)
    return bytes(masked)


def _holds(needles: Needles, data: bytes) -> bool:
    return next(needles.hits(data, is_text=True), None) is not None


def _delete(file: LakePath) -> None:
    (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
    file.unlink(missing_ok=True)


def mask_control_database(engine: Engine, needles: Needles) -> int:
    """Overwrites a subject in the texts of the control database, but for the audit, in which nobody changes a word.

    Returns in how many rows. Raises Unreachable.
    """
    stored, count = MetaData(), 0
    with database.reading(engine) as connection:
        stored.reflect(connection)
    for table in stored.sorted_tables:
        if table.name == audits.name:
            continue
        columns = [column for column in table.columns if isinstance(column.type, (SqlString, Text))]
        keys = list(table.primary_key.columns) or list(table.columns)
        changes = []
        # Read first: a transaction that writes keeps leases from being renewed.
        with database.reading(engine) as connection:
            for row in connection.execute(select(table)):
                values = {column.name: row._mapping[column.name] for column in columns}
                found = {name: _masked(value, needles) for name, value in values.items() if _is_held(needles, value)}
                if found:
                    is_row = [column == row._mapping[column.name] for column in keys]
                    changes.append(update(table).where(*is_row).values(found))
        if changes:
            with database.transaction(engine) as connection:
                for change in changes:
                    connection.execute(change)
        count += len(changes)
    return count


def _is_held(needles: Needles, value: str | None) -> bool:
    return bool(value) and _holds(needles, str(value).encode())


def _masked(value: str, needles: Needles) -> str:
    masked = bytearray(value.encode())
    for hit in list(needles.hits(bytes(masked), is_text=True)):
        masked[hit.begin : hit.end] = MASK * (hit.end - hit.begin)
    return masked.decode(errors="replace")


def free_pages(engine: Engine) -> None:
    """Writes a SQLite database again, so that it holds no deleted rows. Raises Unreachable if it is in use for long."""
    if not engine.url.drivername.startswith("sqlite"):
        return
    try:
        # SQLAlchemy begins a transaction, in which SQLite does not do it.
        with closing(sqlite3.connect(str(engine.url.database), BUSY_SECONDS, isolation_level=None)) as connection:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        raise Unreachable(f"the control database cannot be written again now: {error}") from error
