"""Deletes what is older than `include.retention` allows: python -m include.airflow.supervisor.housekeeping.

Also long logs, temporary files of dead processes, and old checkpoint generations. The watchdog of `make up` runs it
once an hour; elsewhere, cron can. It is no DAG, because an Airflow task may not access Airflow's metadata database.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil

from include import logs, retention
from include.checkpoints import checkpoint_files
from include.control import cleanup
from include.control.flows import incidents
from include.control.flows.alarms import AlarmKind
from include.control.leases.process import OWNER, is_leftover
from include.control.store import database
from include.errors import report
from include.lake import directories, locations
from include.lake.paths import LakePath, names, remove_tree
from include.settings import settings

DAY_SECONDS = 86_400.0


def rotate() -> list[Path]:
    """Copy the end of long logs to `.1` and truncate them, while their processes continue to write. Returns those logs.

    The processes append, so their next line is at the new beginning. A line between copy and truncation is lost.
    """
    long_logs = [file for file in settings().logs.glob("*.log") if file.stat().st_size > retention.LOG_BYTES]
    for file in long_logs:
        older_log = Path(f"{file}.1")
        # First, because the disk may be full, and perhaps by this very log.
        older_log.unlink(missing_ok=True)
        end = _end_of(file, retention.LOG_BYTES)
        is_kept = _is_written(older_log, end)
        os.truncate(file, 0)
        if not is_kept:
            _is_written(older_log, end)
    return long_logs


def _end_of(log: Path, most_bytes: int) -> bytes:
    """The last lines of a log."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - most_bytes))
        return file.read(most_bytes)


def _is_written(file: Path, content: bytes) -> bool:
    try:
        file.write_bytes(content)
    except OSError:
        file.unlink(missing_ok=True)
        return False
    return True


def forget_task_logs(now_seconds: float) -> int:
    """Delete old task logs of Airflow, and the oldest ones if all together are too large. Returns how many.

    now_seconds: since 1970.
    """
    folder = settings().logs / "airflow"
    logs = sorted((stat.st_mtime, stat.st_blocks * 512, file) for file, stat in _files(folder))
    size, deleted = sum(size for _, size, _ in logs), 0
    for modified_at, log_bytes, file in logs:
        if modified_at >= now_seconds - retention.TASK_LOG_DAYS * DAY_SECONDS and size <= retention.TASK_LOG_BYTES:
            break
        file.unlink(missing_ok=True)
        size, deleted = size - log_bytes, deleted + 1
    for directory, _, _ in os.walk(folder, topdown=False):
        if Path(directory) != folder and Path(directory).stat().st_mtime < now_seconds - DAY_SECONDS:
            # Fails unless the directory is empty.
            with suppress(OSError):
                Path(directory).rmdir()
    return deleted


def forget_scratch(now_seconds: float) -> int:
    """Delete temporary files of dead processes. Returns the number of entries. now_seconds: since 1970.

    An entry that names no process is deleted if it is older than every JVM of this home.
    """
    before = min([now_seconds - retention.SCRATCH_DAYS * DAY_SECONDS, *_jvms_started()])
    entries = _entries(settings().temporary)
    return _delete(entry for entry in entries if is_leftover(entry) or _is_ownerless(entry, before))


def _is_ownerless(entry: Path, before: float) -> bool:
    with suppress(FileNotFoundError):
        return not (entry / OWNER).exists() and entry.stat().st_mtime < before
    return False


def forget_generations(now_seconds: float) -> int:
    """Delete generations of checkpoints that have two newer ones and were not written for long. Returns how many.

    now_seconds: since 1970.
    """
    before = now_seconds - retention.GENERATION_DAYS * DAY_SECONDS
    deleted = 0
    for flow in names(locations.all_checkpoints()):
        checkpoints = locations.checkpoints(flow)
        numbers = sorted(checkpoint_files.generations(checkpoints))
        for directory in (checkpoints / str(number) for number in numbers[:-2]):
            if _written_at(directory) < before:
                remove_tree(directory)
                deleted += 1
        # A process that died while it created a generation leaves it unfinished.
        for unfinished in directories.unfinished(checkpoints):
            if _written_at(unfinished) < now_seconds - retention.SCRATCH_DAYS * DAY_SECONDS:
                directories.discard(unfinished)
                deleted += 1
    return deleted


def _jvms_started() -> Iterator[float]:
    """The start times, in seconds since 1970, of the JVMs that have their temporary files here."""
    for process in psutil.process_iter(["name"]):
        with suppress(psutil.Error, OSError):
            if process.info["name"] == "java" and process.environ().get("TMPDIR") == str(settings().temporary):
                yield process.create_time()


def _written_at(generation: LakePath) -> float:
    if isinstance(generation, Path):
        return max(path.stat().st_mtime for path in (generation, *_entries(generation)))
    times = [file.modified_at for file in directories.files(generation)]
    return max(times) if times else generation.stat().st_mtime


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for directory, _, file_names in os.walk(folder):
        for name in file_names:
            file = Path(directory, name)
            # The target of a link may be gone.
            with suppress(FileNotFoundError):
                yield file, file.lstat()


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _delete(paths: Iterable[Path]) -> int:
    deleted = 0
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        deleted += 1
    return deleted


NAME = "housekeeping"
AIRFLOW = str(Path(sys.executable).parent / "airflow")
# Tables with the history of DAG runs. Of DAG versions, Airflow keeps the newest and those in use.
AIRFLOW_TABLES = (
    *("dag_run", "task_instance", "task_instance_history", "task_reschedule", "xcom", "log", "job", "trigger"),
    *("callback", "deadline", "asset_event", "import_error", "revoked_token", "dag_version"),
)
# Rows per transaction: on SQLite, everybody else waits for it.
AIRFLOW_ROWS = 500
AIRFLOW_SECONDS = 1_800


def main() -> int:
    """Run all parts, even if one fails. A failure opens an alarm and gives exit code 1. Raises Unreachable."""
    now_seconds, engine = time.time(), database.connect(settings().control_url)
    parts: dict[str, Callable[[], object]] = {
        "rows of the control database": lambda: cleanup.forget(engine),
        "logs put aside": lambda: [log.name for log in rotate()],
        "logs of Airflow tasks": lambda: forget_task_logs(now_seconds),
        "temporary files": lambda: forget_scratch(now_seconds),
        "generations of checkpoints": lambda: forget_generations(now_seconds),
        "Airflow's metadata": clean_airflow,
    }
    failures = [failure for name, part in parts.items() if (failure := _run_part(name, part))]
    with database.transaction(engine) as connection:
        if failures:
            incidents.begin(connection, NAME, AlarmKind.NOT_CLEANED_UP, "; ".join(failures))
        else:
            incidents.end(connection, NAME)
    return 1 if failures else 0


def clean_airflow() -> str:
    """Run `airflow db clean`. Raises OSError and subprocess.SubprocessError."""
    before = datetime.now(UTC) - timedelta(days=retention.AIRFLOW_DAYS)
    command = [AIRFLOW, "db", "clean", "--clean-before-timestamp", before.isoformat(), "--tables"]
    options = ["--skip-archive", "--yes", "--error-on-cleanup-failure", "--batch-size", str(AIRFLOW_ROWS)]
    completed = subprocess.run(
        [*command, ",".join(AIRFLOW_TABLES), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=AIRFLOW_SECONDS,
    )
    if completed.returncode:
        raise OSError(f"airflow db clean ended with {completed.returncode}: {completed.stdout[-500:]}")
    return f"before {before:%Y-%m-%d} deleted"


def _run_part(name: str, part: Callable[[], object]) -> str | None:
    """Returns why the part failed, in words; None if it succeeded."""
    try:
        logs.info(f"{name}: {part()}")
    except Exception as error:
        logs.error(f"{name}: not cleaned up, next time: {error}")
        return f"{name}: {error}"
    return None


if __name__ == "__main__":
    logs.start()
    report(lambda: sys.exit(main()))
