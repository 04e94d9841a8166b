"""Lines of journals get into `ledger.query_progress` exactly once, whichever process is killed when."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from include.cli import main as cli
from include.errors import Unreachable, UsageError
from include.lake import locations
from include.monitoring import query_progress
from include.monitoring.query_progress import Journal
from include.monitoring.query_progress import gather as gather_once
from include.settings import settings
from tests.conftest import ROOT
from tests.support import lake
from tests.support.flows import rows_of
from tests.support.progress_reports import FLOW, NOW, line, report

STATE = {
    "operatorName": "stateStoreSave",
    "numRowsTotal": 3,
    "numRowsUpdated": 2,
    "allUpdatesTimeMs": 209,
    "numRowsRemoved": 1,
    "commitTimeMs": 104,
    "memoryUsedBytes": 2320,
    "numRowsDroppedByWatermark": 7,
    "customMetrics": {"loadedMapCacheHitCount": 36},
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, own_settings) -> Path:
    own_settings(SLUICE_HOME=tmp_path)
    return tmp_path


def ending(batch: int | None, error: str | None) -> str:
    progress = {**report(0), "timestamp": f"{NOW + timedelta(hours=1):%Y-%m-%dT%H:%M:%S+00:00}"}
    progress |= {"batchId": batch, "error": error}
    return json.dumps({"driver": "main", "flow": FLOW, "generation": 2, "ending": progress})


def write(*lines: str) -> None:
    """Write a finished segment of a journal."""
    journal = Journal()
    journal.write(list(lines))
    journal.finish()


def batches() -> list[int]:
    return sorted(row["batch"] for row in rows_of(query_progress.TABLE))


def table() -> DeltaTable:
    return DeltaTable(str(locations.table_path(query_progress.TABLE)))


def test_a_batch_has_all_that_spark_told_of_it_in_columns():
    progress = report(7, stateOperators=[STATE])
    write(line(progress))
    assert gather_once() == 1
    (row,) = rows_of(query_progress.TABLE)
    raw = row.pop("raw")
    assert json.loads(raw) == progress
    assert row == {
        "day": NOW.date(),
        "event": "batch",
        "at": NOW + timedelta(seconds=7),
        "flow": FLOW,
        "driver": "main",
        "executors": None,
        "generation": 2,
        "batch": 7,
        "query_id": "9db2f8f0-a424-4094-93bf-bd383eefd5ab",
        "run_id": "f39ba1d0-cb89-4d9e-a0d3-cb65d2acb5ba",
        "source": "KafkaV2[Subscribe[tracker_events]]",
        "start_offset": '{"tracker_events": {"0": 700}}',
        "end_offset": '{"tracker_events": {"0": 800}}',
        "latest_offset": '{"tracker_events": {"0": 1000}}',
        "source_metrics": [("maxOffsetsBehindLatest", "900")],
        "sink": "ForeachBatchSink",
        "input_rows": 100,
        "input_rows_per_second": 93.4,
        "processed_rows_per_second": 70.5,
        "output_rows": None,
        "trigger_execution_ms": 1429,
        "latest_offset_ms": 5,
        "get_batch_ms": 4,
        "query_planning_ms": 133,
        "wal_commit_ms": 68,
        "add_batch_ms": 1191,
        "commit_offsets_ms": 33,
        "state": [
            {
                "operator": "stateStoreSave",
                "rows": 3,
                "rows_updated": 2,
                "rows_removed": 1,
                "rows_late": 7,
                "memory_bytes": 2320,
                "commit_ms": 104,
            }
        ],
        "error": None,
    }


def test_rows_that_spark_did_not_read_itself_are_counted_by_the_driver():
    zero_rates = {"numInputRows": 0, "inputRowsPerSecond": 0.0, "processedRowsPerSecond": 0.0}
    write(line(report(7, **zero_rates), rows=143), line(report(8), rows=7), line(report(9, **zero_rates), rows=None))
    write(line(report(10, **zero_rates), read=50, written=40, seconds=2.0), line(report(11), read=7, seconds=10.0))
    gather_once()
    rows = sorted(rows_of(query_progress.TABLE), key=lambda row: row["batch"])
    names = ("input_rows", "input_rows_per_second", "processed_rows_per_second", "output_rows")
    assert [tuple(row[name] for name in names) for row in rows] == [
        (143, None, pytest.approx(143 / 1.429), None),
        (100, 93.4, 70.5, None),
        (0, 0.0, 0.0, None),
        (50, 25.0, pytest.approx(50 / 1.429), 40),
        (100, 10.0, 70.5, None),
    ]
    assert json.loads(rows[3]["raw"])["driver"] == {"read": 50, "written": 40, "seconds": 2.0}
    assert json.loads(rows[3]["raw"])["numInputRows"] == 0


def test_rows_that_spark_wrote_are_counted_by_the_tables_log():
    lake.write("silver.readings", time.time(), written=9, flow="silver.readings", generation=1, batch=7)
    row = {"event": "batch", "flow": "silver.readings", "generation": 1, "batch": 7, "output_rows": None}
    unwritten = {**row, "batch": 8}
    query_progress.add_output_rows([row, unwritten])
    assert (row["output_rows"], unwritten["output_rows"]) == (9, None)


def test_idle_triggers_and_ends_are_told_from_batches():
    idle_report = report(8, durationMs={"latestOffset": 3, "triggerExecution": 4}, numInputRows=0)
    del idle_report["inputRowsPerSecond"]
    write(line(report(7)), line(idle_report), ending(None, None), ending(9, "Broken: a rule was broken"))
    gather_once()
    events = {(row["event"], row["batch"], row["error"]) for row in rows_of(query_progress.TABLE)}
    assert events == {
        ("batch", 7, None),
        ("idle", 8, None),
        ("ended", None, None),
        ("failed", 9, "Broken: a rule was broken"),
    }


def test_an_error_that_quotes_what_is_no_text_keeps_nothing_from_being_gathered():
    write(line(report(7)), ending(9, "OSError: caf\udce9.csv"))
    assert query_progress.gather() == 2
    assert {row["error"] for row in rows_of(query_progress.TABLE)} == {None, "OSError: caf\\udce9.csv"}


def test_all_segments_of_all_drivers_come_in_one_commit():
    for batch in range(5):
        write(line(report(batch)))
    assert gather_once() == 5
    assert table().version() == 0
    assert gather_once() == 0
    assert table().version() == 0
    assert batches() == [0, 1, 2, 3, 4]
    assert query_progress.segments() == []


def test_a_segment_that_its_driver_still_writes_is_left_to_it():
    open_journal = Journal()
    open_journal.write([line(report(1))])
    assert gather_once() == 0
    open_journal.write([line(report(2))])
    open_journal.finish()
    assert gather_once() == 2
    assert batches() == [1, 2]


# Kills itself at the moment that argv[1] names.
KILLED_GATHER = """
import os, shutil, signal, sys
from include.monitoring import query_progress

def die(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[1] == "after the commit":
    query_progress.shutil.rmtree = die
elif sys.argv[1] == "before the commit":
    query_progress.write_deltalake = die
elif sys.argv[1] == "while it claims":
    take = query_progress.claim_segment
    query_progress.claim_segment = lambda *arguments: take(*arguments) and die()
query_progress.gather()
"""


@pytest.mark.parametrize("moment", ["after the commit", "before the commit", "while it claims"])
def test_every_line_comes_once_where_the_gathering_was_killed(home: Path, moment: str):
    write(line(report(0)))
    gather_once()
    write(line(report(1)))
    write(line(report(2)))
    result = subprocess.run(
        [sys.executable, "-c", KILLED_GATHER, moment], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60
    )
    assert result.returncode == -signal.SIGKILL
    assert {row["batch"] for row in query_progress.newest(FLOW, 10)} == {0, 1, 2}
    write(line(report(3)))
    gather_once()
    assert batches() == [0, 1, 2, 3]
    assert query_progress.segments() == []


def test_a_segment_of_a_driver_that_was_killed_is_gathered_without_its_torn_line(home: Path, caplog):
    code = "from include.monitoring.query_progress import Journal; journal = Journal(); "
    code += f"journal.write([{line(report(1))!r}]); "
    code += """journal._segment.write(b'{"driver": "ma'); print(flush=True); input()"""
    driver = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(os.environ)
    )
    assert driver.stdout and driver.stdin
    driver.stdout.readline()
    assert gather_once() == 0
    driver.kill()
    driver.communicate()
    assert gather_once() == 1
    assert batches() == [1]
    assert "line 2 is no query progress, left out" in caplog.text


def test_what_is_written_after_somebody_deleted_a_journal_is_kept():
    journal = Journal()
    journal.write([line(report(1))])
    for segment in query_progress.segments():
        segment.unlink()
    journal.write([line(report(2))])
    journal.finish()
    gather_once()
    assert batches() == [2]


def test_of_two_that_gather_at_once_one_does_it():
    write(line(report(1)))
    with (settings().journals / "gather.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert gather_once() is None
        assert not locations.is_stored(query_progress.TABLE)
    assert gather_once() == 1


def test_several_that_gather_at_once_lose_double_and_hide_nothing():
    stop_event = threading.Event()

    def gather_until_stopped() -> None:
        while not stop_event.is_set():
            gather_once()

    # Each thread opens the lock file itself, as a process would.
    with ThreadPoolExecutor(3) as gatherers:
        futures = [gatherers.submit(gather_until_stopped) for _ in range(3)]
        try:
            for batch in range(20):
                write(line(report(batch)))
                assert [row["batch"] for row in query_progress.newest(FLOW, 100)] == [*range(batch, -1, -1)]
        finally:
            stop_event.set()
    assert [future.exception() for future in futures] == [None] * 3
    gather_once()
    assert batches() == list(range(20))


def test_what_cannot_be_stored_stays_in_its_journal_and_comes_later(home: Path):
    write(line(report(1)))
    log = locations.table_path(query_progress.TABLE) / "_delta_log"
    log.parent.mkdir(parents=True)
    log.write_text("in the way")
    with pytest.raises(Unreachable, match=r"^ledger.query_progress: .* stays in .*progress"):
        gather_once()
    log.unlink()
    assert gather_once() == 1


def test_a_lost_table_begins_anew_with_what_was_claimed(home: Path, monkeypatch: pytest.MonkeyPatch):
    for batch in (1, 2):
        write(line(report(batch)))
        gather_once()
    write(line(report(3)))
    (settings().journals / "claimed-3").mkdir()
    monkeypatch.setattr(query_progress, "_append", lambda *arguments: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(Unreachable):
        gather_once()
    monkeypatch.undo()
    monkeypatch.setenv("SLUICE_HOME", str(home))
    locations.table_path(query_progress.TABLE).rename(home / "lost")
    assert gather_once() == 1
    write(line(report(4)))
    assert gather_once() == 1
    assert batches() == [3, 4]


def test_a_day_of_many_files_is_compacted_and_old_days_are_forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(query_progress, "MOST_FILES_A_DAY", 4)
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    for batch in range(3):
        write(line(report(batch, today)), line(report(batch, today - timedelta(days=30))))
        gather_once()
    assert len(table().file_uris()) == 6
    write(line(report(3, today)), line(report(3, today - timedelta(days=31))))
    gather_once()
    assert len(table().file_uris()) == 4
    assert batches() == [0, 0, 1, 1, 2, 2, 3]


def test_journals_that_nobody_gathers_grow_into_few_files(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(query_progress, "SEGMENT_SECONDS", 0)
    journal = Journal()
    for batch in range(5):
        journal.write([line(report(batch))])
        journal.turn()
    assert len(query_progress.segments()) == 2
    gather_once()
    journal.turn()
    gather_once()
    assert batches() == [0, 1, 2, 3, 4]


def test_a_segment_of_some_size_is_followed_by_another(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(query_progress, "SEGMENT_BYTES", 100)
    journal = Journal()
    for batch in range(3):
        journal.write([line(report(batch))])
        journal.turn()
    assert gather_once() == 3


def test_a_full_journal_says_so_and_takes_more_when_it_was_gathered(monkeypatch: pytest.MonkeyPatch):
    write(line(report(1)))
    monkeypatch.setattr(query_progress, "JOURNAL_BYTES", 100)
    with pytest.raises(OSError, match="wait in .* to be gathered"):
        write(line(report(2)))
    gather_once()
    write(line(report(2)))
    gather_once()
    assert batches() == [1, 2]


def test_the_newest_batches_come_from_the_table_and_from_journals_nobody_has_gathered():
    yesterday = NOW - timedelta(days=1)
    write(line(report(1, yesterday)), line(report(2, yesterday), flow="bronze.other"))
    gather_once()
    write(line(report(3)))
    gather_once()
    open_journal = Journal()
    open_journal.write([line(report(4))])
    assert [row["batch"] for row in query_progress.newest(FLOW, 10)] == [4, 3, 1]
    assert [row["batch"] for row in query_progress.newest(FLOW, 2)] == [4, 3]
    assert query_progress.newest("bronze.nobody", 2) == []
    open_journal.finish()


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """Run a command of `python -m include.ledger`. Returns its output."""

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["ledger", *arguments])
        cli.main()
        return capsys.readouterr().out

    return run


def test_the_commands_gather_and_show_what_batches_took(ledger):
    idle_report = report(8, durationMs={"latestOffset": 3, "triggerExecution": 4}, numInputRows=0)
    write(line(report(7)), line(idle_report), ending(9, "Broken: a rule was broken\nand a page of text"))
    assert "3 rows came into ledger.query_progress" in ledger("gather")
    write(line(report(9)))
    day = f"{NOW:%Y-%m-%d}"
    assert ledger("progress", FLOW).splitlines() == [
        f"{day} 13:00:00Z  2/9  failed  Broken: a rule was broken",
        f"{day} 12:00:09Z  2/9  batch  100 rows, 93.4 in, 70.5 out a second  ms: trigger execution 1,429, "
        "latest offset 5, get batch 4, query planning 133, wal commit 68, add batch 1,191, commit offsets 33",
        f"{day} 12:00:08Z  2/8  idle  ms: trigger execution 4, latest offset 3",
        f"{day} 12:00:07Z  2/7  batch  100 rows, 93.4 in, 70.5 out a second  ms: trigger execution 1,429, "
        "latest offset 5, get batch 4, query planning 133, wal commit 68, add batch 1,191, commit offsets 33",
    ]
    (newest,) = json.loads(ledger("progress", FLOW, "--json", "--limit", "1"))
    assert (newest["event"], newest["at"]) == ("failed", f"{day}T13:00:00+00:00")
    assert "no progress of bronze.page_views is recorded yet" in ledger("progress", "bronze.page_views")
    with pytest.raises(UsageError, match="bronze.page_view"):
        ledger("progress", "bronze.page_view")


def test_a_table_from_which_everything_was_deleted_has_nothing_to_compact():
    write(line(report(1)))
    gather_once()
    table().delete()
    emptied = table().version()
    query_progress.compact_and_expire(table())
    assert table().version() == emptied
