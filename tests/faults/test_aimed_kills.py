"""Drivers are killed before or after the commit of a batch: without the commit, or without Spark's commit log."""

import itertools

import pytest

from include.ledger import verify
from include.settings import settings
from tests.support.flows import FULL, Chain
from tests.support.jobs.process import Job

MOMENTS = ("before", "after")
KILLS = list(itertools.product(("bronze", "quarantine", "silver", "gold"), MOMENTS))
# A merge makes two commits: of the changes to retain, and of the table.
KILLED_MERGES = list(itertools.product(("retained", "latest"), MOMENTS))


# The short form has one kill between data file and commit, one between commit and checkpoint, and one between the two
# commits of a merge.
@pytest.mark.parametrize(
    "kills",
    [KILLS * 2 + KILLED_MERGES * 13 if FULL else [("quarantine", "before"), ("gold", "after"), ("retained", "after")]],
)
def test_a_driver_that_dies_at_a_commit_loses_and_doubles_nothing(chain: Chain, run_once, kills):
    chain.topic.create(2)
    tables = {"bronze": chain.bronze.name, "quarantine": chain.silver.quarantine, "silver": chain.silver.name}
    tables |= {"gold": chain.gold.name, "retained": chain.latest.retained, "latest": chain.latest.name}
    for number, (layer, moment) in enumerate(kills):
        chain.topic.send(*range(number, number + 71), "broken")
        job = Job(settings().home, "tests.support.jobs.aimed_kill", chain.name, chain.topic.name, tables[layer], moment)
        assert job.wait() < 0, job.log.read_text()
    run_once(*chain.all, chain.latest)
    chain.assert_holds(chain.topic.messages())
    chain.assert_latest_holds(chain.topic.messages())
    for table in (*chain.all, chain.latest):
        verify.verify(table)
