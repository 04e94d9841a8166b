"""Drivers are killed before or after the commit of a batch: without the commit, or without Spark's commit log."""

import itertools

import pytest

from include.ledger import verify
from include.settings import settings
from tests.support.flows import FULL, Chain
from tests.support.jobs.process import Job

LAYERS = ("bronze", "quarantine", "silver", "gold")
KILLS = list(itertools.product(LAYERS, ("before", "after")))


# The short form has one kill between data file and commit, and one between commit and checkpoint.
@pytest.mark.parametrize("kills", [KILLS * 2 if FULL else [("quarantine", "before"), ("gold", "after")]])
def test_a_driver_that_dies_at_a_commit_loses_and_doubles_nothing(chain: Chain, run_once, kills):
    chain.topic.create(2)
    tables = {layer: f"{layer}.{chain.name}" for layer in LAYERS} | {"quarantine": chain.silver.quarantine}
    for number, (layer, moment) in enumerate(kills):
        chain.topic.send(*range(number, number + 70), "broken")
        job = Job(settings().home, "tests.support.jobs.aimed_kill", chain.name, chain.topic.name, tables[layer], moment)
        assert job.wait() < 0, job.log.read_text()
    run_once(*chain.all)
    chain.assert_holds(chain.topic.messages())
    for table in chain.all:
        verify.verify(table)
