"""Refreshes of materialized views: each view is replaced in one commit, and a killed run is resumed."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from include.catalog import Catalog
from include.control.jobs import all_kinds, store
from include.control.jobs.windows import Window
from include.control.lease_renewer import LeaseRenewer
from include.control.leases.process import Holder
from include.control.store.job_id import JobKind
from include.delta.delta_log import DeltaLog
from include.engine.jobs import refresh as engine_refresh
from include.engine.jobs.worker import leases
from include.engine.tables import maintain as engine_maintain
from include.errors import FlowBroken, FlowFailed, LeaseHeld, Unreachable
from include.flows import refreshes
from include.lake import locations
from include.ledger import verify
from include.maintenance import table_survey, vacuum_guard
from include.spec import Delta, Expect, Flow, Kafka, Maintenance, Replace, Table
from tests.conftest import ROOT
from tests.support.flows import only_in_full_runs, rows_of
from tests.support.jobs.refresh import views
from tests.support.waiting import wait_until


@pytest.fixture
def grow(name, append) -> Callable[[int], None]:
    """`grow(8)` appends 8 rows to the source of the views, in one commit."""
    return lambda count: append(
        f"silver.{name}", [{"n": number, "part": number % 4} for number in range(count)], "n INT, part INT"
    )


def versions(table: Table) -> list[int]:
    return DeltaLog(locations.table_path(table.name)).versions


def rows_at(table: Table, version: int) -> list[dict]:
    return DeltaTable(str(locations.table_path(table.name)), version=version).to_pyarrow_table().to_pylist()


def has_all_rows(rows: list[dict]) -> bool:
    return bool(rows) and {row["of"] for row in rows} == {len(rows)}


@contextmanager
def record_reads(table: Table) -> Iterator[list[list[dict]]]:
    """Read the table continuously during the block. Yields the list of results."""
    reads: list[list[dict]] = []
    stopped = threading.Event()

    def poll() -> None:
        while not stopped.is_set():
            with suppress(TableNotFoundError):
                reads.append(rows_of(table.name))

    reader = threading.Thread(target=poll)
    reader.start()
    try:
        yield reads
    finally:
        stopped.set()
        reader.join(60)


def test_a_reader_never_sees_a_view_empty_or_half(name, grow, refresh):
    view, _ = views(name)
    grow(400)
    with record_reads(view) as reads:
        for day in range(4):
            refresh(f"day {day}", view)
            grow(100)
    assert all(has_all_rows(rows) for rows in reads)
    assert {400, 500, 600, 700} >= {len(rows) for rows in reads}
    assert len({len(rows) for rows in reads}) > 1, "it was refreshed while somebody looked"
    # The reader may have missed a version.
    assert [len(rows_at(view, version)) for version in versions(view)] == [400, 500, 600, 700]
    assert all(has_all_rows(rows_at(view, version)) for version in versions(view))
    assert verify.verify(view).refreshes == 4


def test_a_run_that_is_done_does_nothing_when_it_is_begun_again(name, grow, refresh, caplog):
    first, second = views(name)
    grow(8)
    refresh("monday", first, second)
    refresh("tuesday", first, second)
    grow(8)
    refresh("monday", first, second)
    engine_refresh.run("monday", [first, second], Catalog({}))
    assert f"{first.name}: nothing done, run 'monday' has refreshed it" in caplog.text
    assert (versions(first), versions(second)) == ([0, 1], [0, 1])
    refresh("wednesday", first)
    assert len(rows_of(first.name)) == 16


def test_two_jobs_of_one_run_refresh_a_view_once(name, grow, refresh):
    first, _ = views(name)
    other_view = replace(first, name=f"gold.{name}_c")
    grow(8)

    def transform_and_refresh(rows):
        refresh("monday", other_view)
        return first.transform(rows)

    refresh("monday", replace(first, transform=transform_and_refresh), other_view)
    assert (versions(first), versions(other_view)) == ([0], [0])


def test_all_views_of_a_run_read_a_table_at_one_version_and_each_other_as_the_run_made_them(name, grow, refresh):
    first, second = views(name)
    grow(8)

    def transform_and_grow(rows):
        grow(5)
        return first.transform(rows)

    refresh("monday", replace(first, transform=transform_and_grow), second)
    assert (len(rows_of(first.name)), len(rows_of(second.name))) == (8, 8)
    assert has_all_rows(rows_of(second.name))
    # Another run refreshes the first view in between. The resumed run still reads its own version.
    refresh("tuesday", first)
    grow(5)
    refresh("other", first)
    refresh("tuesday", first, second)
    first_result, result = (refreshes.in_run(view.name, "tuesday") for view in (first, second))
    assert first_result and result and result.read == first_result.read | {first.name: 1}
    assert has_all_rows(rows_of(second.name))


def test_a_run_that_comes_to_its_work_behind_a_newer_one_is_refused_and_the_newer_rows_stay(name, grow, refresh):
    view, _ = views(name)
    grow(8)

    def transform_and_refresh(rows):
        grow(5)
        refresh("tuesday", view)
        return view.transform(rows)

    other_view = replace(view, name=f"gold.{name}_c", transform=transform_and_refresh)
    with pytest.raises(
        FlowBroken, match="run 'monday' reads .* at version 0, and run 'tuesday' has made it of version 1"
    ):
        refresh("monday", other_view, view)
    assert len(rows_of(view.name)) == 13


class Killed(BaseException):
    """No `except Exception` catches this exception."""


def test_a_run_that_died_between_two_views_is_ended_by_the_same_versions(name, grow, refresh):
    first, second = views(name)
    grow(8)

    def die(rows, first):
        raise Killed

    with pytest.raises(Killed):
        refresh("monday", first, replace(second, transform=die))
    assert versions(first) == [0]
    assert not locations.is_stored(second.name)
    grow(5)
    refresh("monday", first, second)
    assert (versions(first), versions(second)) == ([0], [0])
    assert (len(rows_of(second.name)), has_all_rows(rows_of(second.name))) == (8, True)
    refresh("tuesday", first, second)
    assert (len(rows_of(first.name)), has_all_rows(rows_of(second.name))) == (13, True)


def wait_for_path_of_job(path: Path, job: subprocess.Popen, log: Path) -> None:
    """Wait until the job has made the path. Fails as soon as the job ends without it."""

    def is_made() -> bool:
        if path.exists():
            return True
        assert job.poll() is None, log.read_text()
        return False

    wait_until(is_made, 180, log.read_text, poll_seconds=0.01)


@only_in_full_runs
@pytest.mark.parametrize("moment", ["behind the first", "within the first"])
def test_a_job_that_is_killed_is_ended_by_the_next_each_view_in_one_commit(name, grow, tmp_path, engine, moment: str):
    first, second = views(name)
    grow(400)
    command = [sys.executable, "-m", "tests.support.jobs.refresh", name, "monday"]
    with (tmp_path / "job.log").open("ab") as log:
        job = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        awaited_path = locations.table_path(first.name)
        awaited_path = awaited_path / "_delta_log" / f"{0:020}.json" if moment == "behind the first" else awaited_path
        wait_for_path_of_job(awaited_path, job, tmp_path / "job.log")
        processes = [psutil.Process(job.pid), *psutil.Process(job.pid).children(recursive=True)]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=60)
        assert not locations.is_stored(second.name)
        first_is_stored = locations.is_stored(first.name)
        grow(100)
        assert subprocess.run(command, cwd=ROOT, stdout=log, stderr=log, timeout=300).returncode == 0
    assert (versions(first), versions(second)) == ([0], [0])
    size = 400 if first_is_stored else 500
    for view in (first, second):
        assert (len(rows_of(view.name)), has_all_rows(rows_of(view.name))) == (size, True)
        [job] = all_kinds.newest(engine, JobKind.REFRESH, view.name)
        assert (job.state, job.who, job.parameters) == ("done", "monday", {"views": [first.name, second.name]})


def test_rules_of_a_view_drop_warn_and_fail(name, grow, refresh):
    grow(8)
    expect = (
        Expect("small", "n < 6", otherwise="drop"),
        Expect("even", "n % 2 = 0", otherwise="warn"),
        Expect("positive", "n >= 0", otherwise="fail"),
    )
    view = replace(views(name)[0], expect=expect)
    refresh("monday", view)
    assert sorted(row["n"] for row in rows_of(view.name)) == [0, 1, 2, 3, 4, 5]
    result = refreshes.newest(view.name)
    assert result and result.tally == {
        "read": 8,
        "kept": 6,
        "quarantined": 0,
        "dropped": 2,
        "broke": {"small": 2, "even": 4, "positive": 0},
    }
    failing_view = replace(view, expect=(Expect("large", "n > 6", otherwise="fail"),))
    with pytest.raises(
        FlowBroken, match=rf"{view.name}: run 'tuesday' breaks 'large' \(7 rows\), and the view is left"
    ):
        refresh("tuesday", failing_view)
    assert versions(view) == [0]
    assert verify.verify(view).notes == []


def test_a_changed_declaration_comes_with_the_next_refresh_in_its_one_commit(name, grow, refresh, stored):
    view, _ = views(name)
    grow(8)
    refresh("monday", view)
    changed_view = replace(
        view,
        comment="another",
        schema="n BIGINT COMMENT 'longer', half DOUBLE",
        transform="SELECT CAST(n AS BIGINT) AS n, CAST(n / 2 AS DOUBLE) AS half FROM source",
        partition_by=(),
        cluster_by=("n",),
        owner="team-x",
    )
    refresh("tuesday", changed_view)
    assert versions(view) == [0, 1]
    schema = stored(view.name).schema
    assert schema.simpleString() == "struct<n:bigint,half:double>"
    assert schema["n"].metadata["comment"] == "longer"
    table = DeltaTable(str(locations.table_path(view.name)))
    assert (table.metadata().description, table.metadata().partition_columns) == ("another", [])
    properties = DeltaLog(locations.table_path(view.name)).state.properties
    assert (properties["sluice.owner"], properties["delta.enableExpiredLogCleanup"]) == ("team-x", "false")
    assert len(rows_at(view, 0)) == 8, "the version before is still there"


def test_sql_calls_the_sources_of_a_view_by_their_names(name, grow, refresh):
    grow(8)
    source = Delta(f"silver.{name}")
    view = Table(
        name=f"gold.{name}",
        comment="",
        source={"clicks": source, "buys": source},
        schema="n INT, pairs BIGINT",
        transform="SELECT n, count(*) AS pairs FROM clicks JOIN buys USING (n) GROUP BY n",
        write=Replace(),
    )
    grow(2)
    refresh("monday", view)
    assert {row["n"]: row["pairs"] for row in rows_of(view.name)} == {0: 4, 1: 4} | dict.fromkeys(range(2, 8), 1)


def test_a_view_of_what_is_not_stored_and_one_that_cannot_be_computed_leave_all_as_it_was(name, grow, refresh, engine):
    first, second = views(name)
    with pytest.raises(Unreachable, match=f"silver.{name} is not stored yet, and a view reads it: start its flow"):
        refresh("monday", first, second)
    grow(8)
    with pytest.raises(FlowFailed, match="nothing"):
        refresh("monday", replace(first, transform="SELECT nothing FROM source"), second)
    assert store.newest(engine, Window, first.name)[0].state == "failed"
    assert not locations.is_stored(first.name)
    # What a first commit leaves that was killed.
    (locations.table_path(first.name) / "_delta_log").mkdir(parents=True, exist_ok=True)
    [failed] = all_kinds.newest(engine, JobKind.REFRESH, second.name)
    assert (failed.ended_at, "nothing" in (failed.failure or "")) == (None, True)
    refresh("monday", first, second)
    [job] = all_kinds.newest(engine, JobKind.REFRESH, second.name)
    done = "; ".join(f"{view.name}: replaced: 8 rows, 0 dropped" for view in (first, second))
    assert (job.id, job.state, job.failure, job.message) == (failed.id, "done", None, done)
    assert store.newest(engine, Window, first.name)[0].state == "done"


def test_a_view_of_an_empty_table_is_replaced_and_says_so_and_one_of_none_is_left_alone(name, append, refresh, caplog):
    first, second = views(name)
    engine_refresh.run("sunday", [first, second], Catalog({}))
    output = caplog.text
    for view in (first, second):
        assert f"{view.name}: not refreshed, and left as it was: silver.{name}, which it reads, holds no rows" in output
        assert not locations.is_stored(view.name)
    append(f"silver.{name}", [], "n INT, part INT")
    refresh("monday", first)
    output = caplog.text
    assert f"{first.name}: replaced: 0 rows" in output
    assert (
        f"""silver.{name} held no rows yet; next by `airflow dags trigger refresh -c '{{"table": "{first.name}"}}'`"""
        in "\n".join(caplog.messages)
    )
    assert refreshes.staleness_words(first).startswith(f"last refreshed when silver.{name} held no rows")
    append(f"silver.{name}", [{"n": 1, "part": 1}], "n INT, part INT")
    refresh("tuesday", first)
    assert (len(rows_of(first.name)), refreshes.staleness_words(first)) == (1, "")


def test_a_view_that_somebody_else_has_to_himself_is_not_refreshed(name, grow, refresh, engine):
    view, _ = views(name)
    grow(8)
    other_holder = LeaseRenewer(engine, Holder.here("maintain", os.getpid()), 60, lambda reason: os.abort())
    other_holder.take(leases(view))
    other_holder.start()
    try:
        with pytest.raises(LeaseHeld):
            refresh("monday", view)
        assert store.newest(engine, Window, view.name)[0].state == "skipped"
    finally:
        other_holder.stop()
    assert not locations.is_stored(view.name)


def test_a_view_is_kept_in_shape_by_its_window_like_any_table(name, grow, refresh, maintain):
    view = replace(views(name)[0], maintain=Maintenance(time_travel_hours=0.0001))
    grow(8)
    for day in range(3):
        refresh(f"day {day}", view)
    path = locations.table_path(view.name)
    wait_until(lambda: len(list(path.glob("part=*/*.parquet"))) > 4, 10)
    completed_window = maintain(view)
    assert (completed_window.state, completed_window.before.rows, completed_window.after.rows) == ("done", 8, 8)
    assert has_all_rows(rows_of(view.name))
    refresh("the day after", view)
    assert verify.verify(view).notes == []


def test_a_view_reads_an_old_version_as_it_was_until_its_file_no_longer_declares_it(
    name, append, spark, engine, refresh, maintain
):
    policy = Maintenance(target_file_mb=0.001, time_travel_hours=0.0001)
    prices = Flow(
        name=f"silver.{name}", comment="", source=Kafka("unused"), schema="id INT, price INT", maintain=policy
    )
    path = locations.table_path(prices.name)
    for number in range(3):
        append(prices.name, [{"id": number, "price": 10}], prices.schema)
    log = DeltaLog(path)
    moment = datetime.fromtimestamp((log.commit(1).timestamp + log.commit(2).timestamp) / 2, UTC).isoformat()
    view = Table(
        name=f"gold.{name}",
        comment="",
        source={
            "now": Delta(prices.name),
            "first": Delta(prices.name, version_as_of=0),
            "earlier": Delta(prices.name, timestamp_as_of=moment),
        },
        schema="id INT, price INT, was INT, was_first INT, note STRING",
        transform="SELECT id, now.price, earlier.price AS was, first.price AS was_first, earlier.note FROM now "
        "FULL JOIN earlier USING (id) FULL JOIN first USING (id)",
        write=Replace(),
    )
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (note STRING)")
    spark.sql(f"UPDATE delta.`{path}` SET price = price + id + 1, note = 'new'")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 1")
    expected = [(0, 11, 10, 10, None), (1, None, 10, None, None), (2, 13, None, None, None)]

    def vacuum(*others: Table) -> list[Path]:
        """As a window does. Returns the files of the log that nobody needs."""
        DeltaTable(str(path)).create_checkpoint()
        [survey] = table_survey.survey(engine, prices, Catalog({table.name: table for table in (prices, *others)}))
        engine_maintain.vacuum(spark, prices.name, survey.retention_seconds, {})
        return vacuum_guard.removable_log_files(survey.log, survey.log_needed_from)

    def refreshed(run: str) -> list[tuple]:
        refresh(run, view)
        return sorted(tuple(row.values()) for row in rows_of(view.name))

    assert refreshed("monday") == expected
    maintain(prices, view)
    assert vacuum(view) == []
    assert refreshed("tuesday") == expected
    assert refreshes.newest(view.name).as_of == ((prices.name, 0), (prices.name, 1))
    verify.verify(view)
    as_of = spark.read.option("timestampAsOf", moment).format("delta").load(str(path))
    assert sorted(row["id"] for row in as_of.collect()) == [0, 1]
    assert vacuum() != [], "without the declaration nobody needs the version"
    with pytest.raises(FlowFailed, match="files were deleted before the view declared it"):
        refresh("wednesday", view)
    assert refreshes.newest(view.name).run == "tuesday"
