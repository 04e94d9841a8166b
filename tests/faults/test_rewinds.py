"""Rewinds beside streams that go on, and jobs that are killed in the middle of one."""

from collections.abc import Callable

import pytest

from include.control.commands import Action
from include.control.jobs import rewinds
from include.readers.active_commits import REWIND
from include.readers.delta_log import DeltaLog
from include.settings import settings
from tests.support.flows import has_rows, numbers, only_in_full_runs, rows_of
from tests.support.jobs import Job
from tests.support.producing import flowing
from tests.support.rewinds import moment_of
from tests.support.waiting import wait_until


def wrong(rows):
    return numbers(rows).selectExpr("number * 2 AS number", "partition", "offset", "time")


def is_in(phase: str) -> Callable:
    def look(engine, silver) -> bool:
        found = rewinds.newest(engine, 1)
        return bool(found) and found[0].table == silver.name and found[0].phase == phase

    return look


def has_restored(layer: int) -> Callable:
    def look(_engine, silver) -> bool:
        log = DeltaLog(settings().table_path(silver.name.replace("silver", ("silver", "gold")[layer])))
        return REWIND in log.commit(log.newest).metadata

    return look


MOMENTS = {
    "its-flows-stop": is_in(rewinds.STOPPING),
    "the-tables-are-put-back": is_in(rewinds.RESTORING),
    "the-first-is-put-back": has_restored(0),
    "the-second-is-put-back": has_restored(1),
    "generations-begin": is_in(rewinds.BEGINNING),
    "it-verifies": is_in(rewinds.REFRESHING),
}


SHORT = "the-first-is-put-back"


@pytest.mark.parametrize(
    "moment", [SHORT, *(pytest.param(one, marks=only_in_full_runs) for one in MOMENTS if one != SHORT)]
)
def test_a_rewind_that_is_killed_beside_a_live_stream_is_ended_by_the_next_and_each_row_is_there_once(
    chain, driver, engine, ask, tmp_path, moment
):
    chain.topic.create(2)
    bronze, silver, gold = chain.in_slices
    with driver(bronze, silver, gold) as running:
        with flowing(chain.topic, 20, 0.2):
            wait_until(lambda: has_rows(gold), 300)
            wait_until(lambda: DeltaLog(settings().table_path(gold.name)).newest > 2, 300)
            good = moment_of(gold)
            running.change(silver, transform=wrong)
            ask(Action.RESTART, silver)
            wait_until(lambda: has_wrong_rows(silver), 300)
            running.change(silver, transform=silver.transform)
            Job(tmp_path, "tests.support.rewind_job", chain.name, chain.topic.name, good).kill_when(
                lambda: MOMENTS[moment](engine, silver)
            )
            second = Job(tmp_path, "tests.support.rewind_job", chain.name, chain.topic.name, good)
            assert second.wait() == 0, second.log.read_text()
        chain.assert_all_arrives((bronze, silver, gold))
        assert running.error is None
    for table in (bronze, silver, gold):
        assert_never_half(table.name)


def has_wrong_rows(silver) -> bool:
    return any(row["number"] != row["time"].timestamp() for row in rows_of(silver.name))


def assert_never_half(table: str) -> None:
    """Whoever read the table behind a commit of the rewind read a version that there had been."""
    log = DeltaLog(settings().table_path(table))
    for commit in log.commits():
        if REWIND in commit.metadata:
            there, then = (
                {one.path for one in log.state_at(version).live}
                for version in (commit.version, commit.metadata[REWIND]["to"])
            )
            assert there == then
