"""The ledger's records of real flows are compared with a scan of their tables and topics."""

import os
import random
from collections import Counter

import pytest
from deltalake import DeltaTable

from include.catalog import Catalog
from include.checkpoints.offset_ranges import kafka_ranges
from include.control.commands import Action
from include.flows.batches import STATES_WITH_ROWS, BatchHistory
from include.lake import locations
from include.ledger import explain
from include.ledger.verify import verify
from include.spec import Table
from tests.support.commits import kill_next_batch
from tests.support.flows import FULL, Chain, only_in_full_runs
from tests.support.topic import Topic
from tests.support.waiting import wait_until

Position = tuple[int, int]

RUNS = 24 if FULL else 3
SEED = int(os.environ.get("SLUICE_SEED", "4"))


def rows_by_version(table: Table) -> dict[int, Counter[Position]]:
    """The (partition, offset) of the rows that each version added, from full reads of all versions."""
    path, rows_before, added = str(locations.table_path(table.name)), Counter[Position](), {}
    for version in range(DeltaTable(path).version() + 1):
        rows = DeltaTable(path, version).to_pyarrow_table(columns=["partition", "offset"]).to_pylist()
        rows_now = Counter((row["partition"], row["offset"]) for row in rows)
        assert rows_before <= rows_now
        added[version], rows_before = rows_now - rows_before, rows_now
    return added


def assert_ledger_matches_scan(chain: Chain, topic: Topic) -> None:
    """Compare each batch of bronze and silver: its row count, and its records by offset."""
    sent = {(message.partition, message.offset): message.value for message in topic.messages()}
    tables = Catalog({table.name: table for table in chain.all})
    for table in (chain.bronze, chain.silver):
        added = rows_by_version(table)
        batches = [batch for batch in BatchHistory(table).batches() if batch.state in STATES_WITH_ROWS]
        assert {batch.version for batch in batches} >= {version for version, rows in added.items() if rows}
        for batch in batches:
            assert batch.version is not None
            assert batch.rows in (None, added[batch.version].total())
            ranges = explain.of_version(tables, table, batch.version)
            while ranges.above:
                ranges = ranges.above
            positions = {
                (offset_range.partition, offset)
                for offset_range in ranges.ranges
                for offset in range(offset_range.first, offset_range.after)
            } & sent.keys()
            if table is chain.silver:
                positions = {position for position in positions if sent[position].isdigit()}
            assert Counter(positions) >= added[batch.version]
            if table is chain.bronze:
                assert Counter(positions) == added[batch.version]
                assert ranges.ranges == kafka_ranges(batch.source_from, batch.source_to)
    for table in chain.all:
        verify(table)


@pytest.mark.parametrize("seed", [SEED, *([SEED + 1, SEED + 2] if RUNS > 3 else [])])
def test_whatever_was_killed_the_account_of_rows_equals_a_scan_of_the_tables(
    chain, topic, run_once, ask, monkeypatch, seed
):
    """The topic has committed and aborted transactions, and values that are not numbers. Checkpoints are reset."""
    rng = random.Random(seed)
    topic.create(2)
    for number in range(RUNS):
        values = [rng.choice((rng.randrange(600), b"x")) for _ in range(rng.randrange(1, 8))]
        if rng.random() < 0.4:
            topic.send_in_transactions(
                (False, tuple(values[:2])), (True, tuple(values)), (rng.random() < 0.5, tuple(values[-1:]))
            )
        else:
            topic.send(*values)
        if number == 0:
            run_once(*chain.all)
        elif number % 2:
            index = chain.all.index(rng.choice(chain.all))
            run_once(*chain.all[:index])
            with kill_next_batch(monkeypatch, chain.all[index].flow, is_written=rng.random() < 0.5):
                run_once(chain.all[index])
            if rng.random() < 0.3:
                ask(Action.RESET_CHECKPOINT, chain.all[index])
    run_once(*chain.all)
    chain.assert_holds(topic.messages())
    assert_ledger_matches_scan(chain, topic)


@only_in_full_runs
def test_a_topic_that_was_compacted_before_it_was_read_balances(chain, topic, run_once):
    topic.create(1, cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.001")
    sent = 0

    def is_compacted() -> bool:
        # A new record closes the segment of the older records, so Kafka can compact them.
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
    [batch] = BatchHistory(chain.bronze).batches()
    assert batch.rows == len(topic.messages()) < topic.ends()[0]
