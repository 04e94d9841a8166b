"""Measurements of the benchmarks: ratios by round, repeated blocks, and the table of the results."""

import os

import psutil
import pytest

from benchmarks.support import measure
from benchmarks.support.measure import Figure, Row, Sample, Spent

QUIET, BUSY, BUSIER = Spent(1.0, 2.0, others=0.1), Spent(3.0, 2.0, others=0.2), Spent(5.0, 2.0, others=0.4)


def test_a_ratio_compares_within_each_round():
    # The machine was ten times slower in the second round, for both.
    row = Row("batch", "CPU-s", {"sluice": Figure((1, 10, 2)), "stock": Figure((4, 40, 8))})
    assert row.ratios() == {"stock": 4}


def test_a_block_beside_quiet_neighbours_runs_once():
    blocks = iter([QUIET, BUSY])
    assert measure.run_undisturbed(lambda: next(blocks)) is QUIET


@pytest.mark.parametrize(
    ("blocks", "kept"), [([BUSY, QUIET], QUIET), ([BUSY, BUSIER], BUSY), ([BUSIER, BUSY, QUIET], BUSY)]
)
def test_a_block_beside_busy_neighbours_runs_once_more_and_the_quieter_counts(blocks: list[Spent], kept: Spent):
    remaining_blocks = iter(blocks)
    assert measure.run_undisturbed(lambda: next(remaining_blocks)) is kept


def test_who_goes_first_changes_with_each_round():
    order = []

    def block(name: str) -> Spent:
        order.append(name)
        return QUIET

    spent = measure.run_alternating({name: lambda name=name: block(name) for name in "ab"}, rounds=3)
    assert "".join(order) == "abbaab"
    assert {name: len(blocks) for name, blocks in spent.items()} == {"a": 3, "b": 3}


def test_a_figure_with_a_busy_round_is_flagged():
    assert measure.cpu_figure([QUIET, BUSY], 1).is_flagged
    assert not measure.cpu_figure([QUIET, QUIET], 1).is_flagged
    assert measure.cpu_figure([QUIET, BUSY], 2).values == (0.5, 1.5)


def test_the_table_begins_with_cpu_seconds_and_explains_its_flags():
    rows = [
        Row("bytes", "MB", {"sluice": Figure((2,)), "stock": Figure((4,))}),
        Row("batch", "CPU-s", {"sluice": Figure((0.5,)), "stock": Figure((5,), is_flagged=True)}),
    ]
    lines = list(measure.table(rows))
    assert lines[2] == "| batch | CPU-s | 0.5 | stock | 5 (!) | 10.00 |"
    assert lines[3] == "| bytes | MB | 2 | stock | 4 | 2.00 |"
    assert "15%" in lines[-1]


def test_work_of_this_process_is_no_work_of_others():
    def work() -> None:
        sum(number * number for number in range(3_000_000))

    spent = measure.spend(lambda: measure.tree_cpu_seconds(os.getpid()), work)
    assert 0 < spent.cpu_seconds <= 2 * spent.wall_seconds
    assert 0 <= spent.others <= 1


def test_what_the_benchmark_started_itself_is_not_burnt_by_others():
    before = Sample(cpu=10, wall=100, machine=1_000, ours=20)
    cores = psutil.cpu_count() or 1
    # The engine and the broker used all but one of ten seconds of each core.
    after = Sample(cpu=17, wall=110, machine=1_000 + 10 * cores, ours=20 + 9 * cores)
    assert after.since(before) == Spent(cpu_seconds=7, wall_seconds=10, others=0.1)
