"""What nobody needs any more: long logs, old logs of tasks, scratch of dead processes, generations of checkpoints."""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from include import retention
from include.control.process import OWNER, is_scratch_of_dead
from include.settings import settings

DAY_SECONDS = 86_400.0


def rotate() -> list[Path]:
    """Put aside what is in long logs, also while their processes write on; returns those logs.

    They append, so their next line stands at the new beginning. A line that is written between copy and cut is lost.
    """
    long = [log for log in settings().logs.glob("*.log") if log.stat().st_size > retention.LOG_BYTES]
    for log in long:
        shutil.copyfile(log, f"{log}.1")
        os.truncate(log, 0)
    return long


def forget_task_logs(now: float) -> int:
    """Those of Airflow that are old, and the oldest where all together are too large; returns how many.

    now: seconds since 1970.
    """
    folder = settings().logs / "airflow"
    found = sorted((stat.st_mtime, stat.st_blocks * 512, file) for file, stat in _files(folder))
    size, deleted = sum(size for _, size, _ in found), 0
    for modified_at, bytes_, file in found:
        if modified_at >= now - retention.TASK_LOG_DAYS * DAY_SECONDS and size <= retention.TASK_LOG_BYTES:
            break
        file.unlink(missing_ok=True)
        size, deleted = size - bytes_, deleted + 1
    for directory, _, _ in os.walk(folder, topdown=False):
        if Path(directory) != folder and Path(directory).stat().st_mtime < now - DAY_SECONDS:
            # Only an empty one.
            with suppress(OSError):
                Path(directory).rmdir()
    return deleted


def forget_scratch(now: float) -> int:
    """Temporary files of processes that are dead; returns how many entries. now: seconds since 1970.

    Where an entry does not say whose it is, it is nobody's if it is older than every JVM of this home.
    """
    before = min([now - retention.SCRATCH_DAYS * DAY_SECONDS, *_jvms_started()])
    entries = _entries(settings().temporary)
    return _delete(one for one in entries if is_scratch_of_dead(one) or _is_nobodys(one, before))


def _is_nobodys(entry: Path, before: float) -> bool:
    with suppress(FileNotFoundError):
        return not (entry / OWNER).exists() and entry.stat().st_mtime < before
    return False


def forget_generations(now: float) -> int:
    """Generations of checkpoints that two newer ones follow, and that nobody has written for long; returns how many.

    now: seconds since 1970.
    """
    before = now - retention.GENERATION_DAYS * DAY_SECONDS
    old = []
    for flow in _entries(settings().home / "checkpoints"):
        generations = sorted((one for one in _entries(flow) if one.name.isdigit()), key=lambda one: int(one.name))
        old += [one for one in generations[:-2] if _written_at(one) < before]
        # Whoever began one and died has left it under this name.
        unfinished = [one for one in _entries(flow) if one.suffix == ".new"]
        old += [one for one in unfinished if _written_at(one) < now - retention.SCRATCH_DAYS * DAY_SECONDS]
    return _delete(old)


def _jvms_started() -> Iterator[float]:
    """When each living one that has its temporary files here was started, seconds since 1970."""
    for process in psutil.process_iter(["name"]):
        with suppress(psutil.Error, OSError):
            if process.info["name"] == "java" and process.environ().get("TMPDIR") == str(settings().temporary):
                yield process.create_time()


def _written_at(generation: Path) -> float:
    return max(path.stat().st_mtime for path in (generation, *_entries(generation)))


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for directory, _, names in os.walk(folder):
        for name in names:
            file = Path(directory, name)
            # A link to the newest may lead nowhere by now.
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
