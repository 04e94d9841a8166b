"""The ledger's account of what real flows did, held against a scan of their tables and topics."""

import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from deltalake import DeltaTable

from include.catalog import Catalog
from include.control.commands import Action
from include.errors import FlowFailed
from include.ledger import provenance
from include.ledger.verify import verify
from include.readers import kafka_broker
from include.readers.batches import STATES_WITH_ROWS, BatchHistory
from include.readers.offset_ranges import kafka_ranges
from include.settings import settings
from include.spec import Table
from tests.support.commits import around_commits
from tests.support.flows import FULL, Chain, only_in_full_runs
from tests.support.topic import Topic
from tests.support.waiting import wait_until

Place = tuple[int, int]

RUNS = 24 if FULL else 3
SEED = int(os.environ.get("SLUICE_SEED", "4"))


@contextmanager
def killed(monkeypatch, flow: str, is_written: bool) -> Iterator[None]:
    """The flow's next batch ends behind its quarantine, or behind the commit of its table."""

    def die(table, done) -> None:
        if table.flow != flow:
            return done()
        if is_written:
            done()
        raise OSError("the lights went out")

    with monkeypatch.context() as patched, pytest.raises(FlowFailed, match="the lights went out"):
        around_commits(patched, die)
        yield


def brought(table: Table) -> dict[int, Counter[Place]]:
    """By version, partition and offset of the rows that are in the table since then: each version read in full."""
    path, before, found = str(settings().table_path(table.name)), Counter[Place](), {}
    for version in range(DeltaTable(path).version() + 1):
        rows = DeltaTable(path, version).to_pyarrow_table(columns=["partition", "offset"]).to_pylist()
        now = Counter((row["partition"], row["offset"]) for row in rows)
        assert before <= now
        found[version], before = now - before, now
    return found


def assert_the_account_is_a_scan(chain: Chain, topic: Topic) -> None:
    """Batch by batch: rows, and the records of bronze and silver by their offsets."""
    sent = {(one.partition, one.offset): one.value for one in topic.messages()}
    tables = Catalog({table.name: table for table in chain.all})
    for table in (chain.bronze, chain.silver):
        scanned = brought(table)
        told = [one for one in BatchHistory(table).batches() if one.state in STATES_WITH_ROWS]
        assert {one.version for one in told} >= {version for version, rows in scanned.items() if rows}
        for one in told:
            assert one.version is not None
            assert one.rows in (None, scanned[one.version].total())
            ranges = provenance.of_version(tables, table, one.version)
            while ranges.above:
                ranges = ranges.above
            read = {
                (span.partition, offset) for span in ranges.ranges for offset in range(span.first, span.after)
            } & sent.keys()
            if table is chain.silver:
                read = {place for place in read if sent[place].isdigit()}
            assert Counter(read) >= scanned[one.version]
            if table is chain.bronze:
                assert Counter(read) == scanned[one.version]
                assert ranges.ranges == kafka_ranges(one.source_from, one.source_to)
    for table in chain.all:
        verify(table)


@pytest.mark.parametrize("seed", [SEED, *([SEED + 1, SEED + 2] if RUNS > 3 else [])])
def test_whatever_was_killed_the_account_of_rows_equals_a_scan_of_the_tables(
    chain, topic, run_once, ask, monkeypatch, seed
):
    """With transactions, some of them rolled back, values that are no numbers, and checkpoints that are reset."""
    dice = random.Random(seed)
    topic.create(2)
    for number in range(RUNS):
        values = [dice.choice((dice.randrange(600), b"x")) for _ in range(dice.randrange(1, 8))]
        if dice.random() < 0.4:
            topic.send_in_transactions(
                (False, tuple(values[:2])), (True, tuple(values)), (dice.random() < 0.5, tuple(values[-1:]))
            )
        else:
            topic.send(*values)
        if number == 0:
            run_once(*chain.all)
        elif number % 2:
            one = chain.all.index(dice.choice(chain.all))
            run_once(*chain.all[:one])
            with killed(monkeypatch, chain.all[one].flow, is_written=dice.random() < 0.5):
                run_once(chain.all[one])
            if dice.random() < 0.3:
                ask(Action.RESET_CHECKPOINT, chain.all[one])
    run_once(*chain.all)
    chain.assert_holds(topic.messages())
    assert_the_account_is_a_scan(chain, topic)


@only_in_full_runs
def test_a_topic_that_was_compacted_before_it_was_read_balances(chain, topic, run_once):
    topic.create(1, cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.001")
    sent = 0

    def is_compacted() -> bool:
        # Of one key; a record of now rolls the segment that the older ones are in.
        nonlocal sent
        topic.send_keyed("a", *range(sent, sent + 5))
        sent += 5
        return len(topic.messages()) < sent - 5

    wait_until(is_compacted, 120)
    run_once(chain.bronze, chain.silver)
    verdict = verify(chain.bronze)
    assert verdict.batches == 1
    assert "(cleanup.policy compact) hold no record: compaction or transactions" in " ".join(verdict.notes)
    chain.assert_bronze_holds(topic.messages())
    verify(chain.silver)
    [held] = BatchHistory(chain.bronze).batches()
    assert held.rows == len(topic.messages()) < kafka_broker.end_offsets(topic.servers, topic.name)[0]
