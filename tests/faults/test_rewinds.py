"""Rewinds run beside live streams, and their jobs are killed at each phase."""

from collections.abc import Callable

import pytest

from include.control.commands import Action
from include.control.jobs import rewinds, store
from include.control.jobs.rewinds import Rewind
from include.delta.commit_history import REWIND
from include.delta.delta_log import DeltaLog
from include.lake import locations
from tests.support.flows import double_numbers, has_rows, only_in_full_runs, rows_of
from tests.support.jobs.process import Job
from tests.support.producing import produce_numbers
from tests.support.rewinds import moment_of
from tests.support.waiting import wait_until


def in_phase(phase: str) -> Callable:
    def condition(engine, silver) -> bool:
        newest = store.newest(engine, Rewind, limit=1)
        return bool(newest) and newest[0].table == silver.name and newest[0].state == phase

    return condition


def has_restored(layer: int) -> Callable:
    def condition(_engine, silver) -> bool:
        log = DeltaLog(locations.table_path(silver.name.replace("silver", ("silver", "gold")[layer])))
        return REWIND in log.commit(log.newest).metadata

    return condition


MOMENTS = {
    "its-flows-stop": in_phase(rewinds.STOPPING),
    "the-tables-are-put-back": in_phase(rewinds.RESTORING),
    "the-first-is-put-back": has_restored(0),
    "the-second-is-put-back": has_restored(1),
    "generations-begin": in_phase(rewinds.BEGINNING),
    "it-verifies": in_phase(rewinds.REFRESHING),
}


@only_in_full_runs
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_rewind_that_is_killed_beside_a_live_stream_is_ended_by_the_next_and_each_row_is_there_once(
    chain, driver, engine, ask, tmp_path, moment
):
    chain.topic.create(2)
    bronze, silver, gold = chain.in_slices
    with driver(bronze, silver, gold) as running_driver:
        with produce_numbers(chain.topic, 20, 0.2):
            wait_until(lambda: has_rows(gold), 300)
            wait_until(lambda: DeltaLog(locations.table_path(gold.name)).newest > 2, 300)
            valid_moment = moment_of(gold)
            running_driver.change(silver, transform=double_numbers)
            ask(Action.RESTART, silver)
            wait_until(lambda: has_wrong_rows(silver), 300)
            running_driver.change(silver, transform=silver.transform)
            Job(tmp_path, "tests.support.jobs.rewind", chain.name, chain.topic.name, valid_moment).kill_when(
                lambda: MOMENTS[moment](engine, silver)
            )
            second_job = Job(tmp_path, "tests.support.jobs.rewind", chain.name, chain.topic.name, valid_moment)
            assert second_job.wait() == 0, second_job.log.read_text()
        chain.assert_all_arrives((bronze, silver, gold))
        assert running_driver.error is None
    for table in (bronze, silver, gold):
        assert_restored_files(table.name)


def has_wrong_rows(silver) -> bool:
    return any(row["number"] != row["time"].timestamp() for row in rows_of(silver.name))


def assert_restored_files(table: str) -> None:
    """Assert that each commit of the rewind leaves exactly the files of the version that it restores."""
    log = DeltaLog(locations.table_path(table))
    for commit in log.commits():
        if REWIND in commit.metadata:
            files_after, files_before = (
                {file.path for file in log.state_at(version).live}
                for version in (commit.version, commit.metadata[REWIND]["to"])
            )
            assert files_after == files_before
