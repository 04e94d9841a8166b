"""Cleaning takes a subject out of logs, commits, databases and dead files, and leaves everything else as it was."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from sqlalchemy import Engine, select

from include.control.store import audit, database
from include.control.store.schema import audits, desired
from include.delta.delta_log import DeltaLog
from include.erasure import cleaning
from include.erasure.needles import Needles
from include.lake import locations
from include.settings import settings

SUBJECT = "user-4711"
NEEDLES = Needles([SUBJECT])


@pytest.fixture
def table(tmp_path: Path, own_settings: Callable[..., None]) -> Path:
    """A table whose first two versions hold the subject, and whose newest one does not."""
    own_settings(SLUICE_HOME=tmp_path / "home")
    path = Path(str(locations.table_path("silver.t")))
    path.mkdir(parents=True)
    for names in ([SUBJECT, "zoe"], ["bob"]):
        write_deltalake(str(path), pa.table({"name": names}), mode="append")
    DeltaTable(str(path)).create_checkpoint()
    DeltaTable(str(path)).delete(f"name = '{SUBJECT}'")
    DeltaTable(str(path)).create_checkpoint()
    return path


def holding(table: Path) -> list[Path]:
    return [file for file in sorted(table.rglob("*")) if file.is_file() and list(NEEDLES.hits(file.read_bytes(), True))]


def test_what_is_dead_goes_and_what_lives_stays(table):
    live = {table / file.path for file in DeltaLog(table).state.live}
    before = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    files = [file for file in table.rglob("*") if file.is_file()]
    cleaning.clean_table("silver.t", NEEDLES, holding(table))
    assert holding(table) == []
    assert all(file.exists() for file in live)
    assert DeltaTable(str(table)).to_pyarrow_table().to_pylist() == before
    gone = [file for file in files if not file.exists()]
    assert gone
    assert live.isdisjoint(gone)


def test_a_commit_keeps_its_time_its_rows_and_its_other_words(table):
    commit = table / "_delta_log" / "00000000000000000000.json"
    checksum = commit.with_name(f".{commit.name}.crc")
    checksum.write_bytes(b"crc")
    os.utime(commit, ns=(1, 1_700_000_000_000_000_000))
    before = DeltaLog(table).commit(0)
    cleaning.clean_table("silver.t", NEEDLES, [commit])
    after = DeltaLog(table).commit(0)
    assert (after.rows, after.timestamp, after.operation) == (before.rows, before.timestamp, before.operation)
    [stats] = [json.loads(action["add"]["stats"]) for action in DeltaLog(table).actions(0) if "add" in action]
    assert stats == {"numRecords": 2}
    # Hadoop would compare the commit with the checksum of before.
    assert not checksum.exists()


def test_a_log_is_overwritten_in_place_while_others_add_to_it(table):
    log = settings().logs / "driver.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(f"INFO {SUBJECT} failed\nINFO user-47110 failed\n")
    with log.open("a") as writer:
        assert cleaning.mask(log, NEEDLES) == 1
        writer.write("INFO after\n")
    assert log.read_text() == "INFO ********* failed\nINFO user-47110 failed\nINFO after\n"
    assert cleaning.is_text_of_runs(log)
    assert not cleaning.is_text_of_runs(table / "_delta_log" / "00000000000000000000.json")


def test_the_control_database_forgets_a_subject_and_keeps_what_else_was_said(engine: Engine):
    with database.transaction(engine) as connection:
        for flow, reason in (("a", f"for {SUBJECT} and user-47110"), ("b", "for nobody")):
            connection.execute(desired.insert().values(flow=flow, state="running", reason=reason))
        audit.record(connection, "eve", "look", "silver.t", f"for {SUBJECT}", "found")
    assert cleaning.mask_control_database(engine, NEEDLES) == 1
    cleaning.free_pages(engine)
    with database.reading(engine) as connection:
        reasons = list(connection.execute(select(desired.c.reason).order_by(desired.c.flow)).scalars())
        kept = connection.execute(select(audits.c.reason).order_by(audits.c.number.desc())).scalars().first()
    assert reasons == ["for ********* and user-47110", "for nobody"]
    # The audit says what was said.
    assert kept == f"for {SUBJECT}"
    if engine.url.drivername.startswith("sqlite"):
        file = Path(str(engine.url.database))
        # Free pages would hold the old text.
        for part in (file, file.with_name(f"{file.name}-wal")):
            assert not part.exists() or f"{SUBJECT} and".encode() not in part.read_bytes()
