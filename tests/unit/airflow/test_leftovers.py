"""Logs, scratch and old generations are deleted, except those of live processes."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from include import retention
from include.airflow.supervisor import housekeeping
from include.airflow.supervisor.housekeeping import DAY_SECONDS
from include.control.leases import process
from include.control.leases.process import OWNER, Process

NOW = time.time()


def write(file: Path, text: str = "x", days_old: float = 0) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    os.utime(file, (NOW, NOW - days_old * DAY_SECONDS))
    return file


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def test_a_log_is_put_aside_while_its_process_writes_on(home, monkeypatch):
    monkeypatch.setattr(retention, "LOG_BYTES", len("before it was put aside\n"))
    short_log, log = write(home / "log" / "short.log", "short"), write(home / "log" / "long.log", "")
    script = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
    with log.open("ab") as output, log.open() as reader:
        writer = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=output, text=True)

        def write_line(line: str) -> None:
            writer.stdin.write(f"{line}\n")
            writer.stdin.flush()
            while not reader.readline():
                reader.seek(min(reader.tell(), log.stat().st_size))

        try:
            write_line("long before")
            write_line("before it was put aside")
            assert housekeeping.rotate() == [log]
            reader.seek(0)
            write_line("after")
        finally:
            writer.communicate()
    assert log.read_bytes() == b"after\n", "the log has a hole where it was cut"
    assert Path(f"{log}.1").read_text() == "before it was put aside\n"
    assert housekeeping.rotate() == []
    assert short_log.read_text() == "short"


def test_a_log_that_has_filled_the_disk_is_truncated_all_the_same_and_its_end_is_kept(home, monkeypatch):
    monkeypatch.setattr(retention, "LOG_BYTES", 10)
    log = write(home / "log" / "long.log", "x" * 100 + "the cause\n")
    older_log = write(home / "log" / "long.log.1", "from long ago")
    write_bytes, disk_bytes = Path.write_bytes, 115

    def write_to_small_disk(file: Path, content: bytes) -> int:
        others = sum(entry.stat().st_size for entry in log.parent.iterdir() if entry != file)
        if others + len(content) > disk_bytes:
            write_bytes(file, content[:3])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_bytes(file, content)

    monkeypatch.setattr(Path, "write_bytes", write_to_small_disk)
    assert housekeeping.rotate() == [log]
    assert (log.read_text(), older_log.read_text()) == ("", "the cause\n")


def test_logs_of_tasks_go_by_age_and_the_oldest_by_size(home, monkeypatch):
    runs = home / "log" / "airflow" / "dag_id=supervise"
    old_log = write(runs / "run_id=1" / "attempt=1.log", days_old=retention.TASK_LOG_DAYS + 1)
    os.utime(old_log.parent, (NOW, NOW - 2 * DAY_SECONDS))
    for number in range(2, 6):
        write(runs / f"run_id={number}" / "attempt=1.log", "x" * 5_000, days_old=9 - number)
    assert housekeeping.forget_task_logs(NOW) == 1
    monkeypatch.setattr(retention, "TASK_LOG_BYTES", 20_000)
    assert housekeeping.forget_task_logs(NOW) == 2
    assert {file.parent.name for file in runs.rglob("*.log")} == {"run_id=4", "run_id=5"}
    assert not old_log.parent.exists() or not names(old_log.parent)


@pytest.fixture
def scratch(home) -> Path:
    return home / "tmp"


def test_the_scratch_of_a_killed_process_goes_at_once_and_that_of_a_living_one_stays(home, scratch, sleeper):
    own_folder, live_folder, dead_folder = (
        process.create_temporary_folder(),
        scratch / "process-1",
        scratch / "process-2",
    )
    live_process, dead_process = sleeper(), sleeper()
    write(live_folder / OWNER, Process.of(live_process.pid).to_json(), days_old=1_000)
    write(dead_folder / OWNER, Process.of(dead_process.pid).to_json())
    write(dead_folder / "blockmgr-1" / "00" / "shuffle", "much")
    dead_process.kill()
    dead_process.wait()
    assert housekeeping.forget_scratch(NOW) == 1
    assert names(scratch) == {own_folder.name, live_folder.name}


def test_scratch_of_nobody_known_goes_when_it_is_old(scratch):
    for name, days_old in {"blockmgr-1": 30, "blockmgr-2": 1}.items():
        write(scratch / name / "00" / "shuffle")
        os.utime(scratch / name, (NOW, NOW - days_old * DAY_SECONDS))
    write(scratch / "libsnappy.so", days_old=30)
    assert housekeeping.forget_scratch(NOW) == 2
    assert names(scratch) == {"blockmgr-2"}


def test_scratch_that_a_living_jvm_may_have_made_stays(scratch, monkeypatch):
    monkeypatch.setattr(housekeeping, "_jvms_started", lambda: [NOW - 100 * DAY_SECONDS])
    write(scratch / "before", days_old=101)
    write(scratch / "since", days_old=99)
    assert housekeeping.forget_scratch(NOW) == 1
    assert names(scratch) == {"since"}


def test_old_generations_go_but_never_the_newest_two(home):
    flow = home / "checkpoints" / "silver.a"
    for number in (8, 9, 10, 11):
        write(flow / str(number) / "commits" / "7", days_old=1_000)
        os.utime(flow / str(number) / "commits", (NOW, NOW - 1_000 * DAY_SECONDS))
        os.utime(flow / str(number), (NOW, NOW - 1_000 * DAY_SECONDS))
    os.utime(flow / "9" / "commits", (NOW, NOW - 10 * DAY_SECONDS))
    write(flow / "lock", days_old=1_000)
    for number, days_old in {12: 30, 13: 1}.items():
        write(flow / f"{number}.new" / OWNER, days_old=days_old)
        os.utime(flow / f"{number}.new", (NOW, NOW - days_old * DAY_SECONDS))
    assert housekeeping.forget_generations(NOW) == 2
    assert names(flow) == {"9", "10", "11", "13.new", "lock"}


def test_a_home_without_anything_has_nothing_to_clean_up(home):
    assert housekeeping.rotate() == []
    assert (
        housekeeping.forget_task_logs(NOW)
        == housekeeping.forget_scratch(NOW)
        == housekeeping.forget_generations(NOW)
        == 0
    )
