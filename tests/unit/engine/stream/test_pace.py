"""The intervals at which the roots of a driver begin their batches: a rule of numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.engine.stream.pacer import BUSY_SHARE, LONGEST_INTERVAL_SECONDS, MOST_ROUNDS, Root, intervals, smoothed

ROOTS = st.dictionaries(
    st.sampled_from("abcdef"),
    st.builds(Root, st.floats(0.001, 3600), st.floats(0, 600)),
    min_size=1,
)
CORES = st.integers(1, 64)


@given(ROOTS, CORES)
def test_no_root_begins_sooner_than_it_declares_nor_waits_without_end(roots, cores):
    for name, seconds in intervals(roots, cores).items():
        root = roots[name]
        longest = max(root.interval_seconds, LONGEST_INTERVAL_SECONDS, MOST_ROUNDS * root.round_seconds)
        assert root.interval_seconds <= seconds <= longest


@given(ROOTS, CORES)
def test_all_rounds_together_keep_within_their_share_of_the_cores(roots, cores):
    seconds_by_root = intervals(roots, cores)
    is_bounded = any(seconds >= LONGEST_INTERVAL_SECONDS for seconds in seconds_by_root.values())
    busy = sum(roots[name].round_seconds / seconds for name, seconds in seconds_by_root.items())
    assert is_bounded or busy <= BUSY_SHARE * cores * 1.001


@given(ROOTS, CORES, st.sampled_from("abcdef"), st.floats(0, 600))
def test_more_work_makes_no_root_begin_more_often(roots, cores, busier, seconds):
    busier_roots = roots | {
        name: Root(root.interval_seconds, root.round_seconds + seconds)
        for name, root in roots.items()
        if name == busier
    }
    before, after = intervals(roots, cores), intervals(busier_roots, cores)
    assert all(after[name] >= before[name] * 0.999_999 for name in roots)


def test_cheap_batches_begin_as_often_as_declared_and_dear_ones_less_often():
    assert intervals({"a": Root(1.0, 0.5)}, cores=2) == {"a": 1.0}
    assert intervals({"a": Root(1.0, 3.0)}, cores=2) == {"a": pytest.approx(2.5)}


def test_the_work_of_others_counts():
    interval_alone = intervals({"a": Root(1.0, 1.8)}, cores=2)["a"]
    assert intervals({"a": Root(1.0, 1.8), "b": Root(1.0, 1.8)}, cores=2)["a"] == pytest.approx(2 * interval_alone)


def test_a_root_that_comes_seldom_slows_the_others_little():
    seconds_by_root = intervals({"a": Root(1.0, 1.2), "b": Root(600.0, 6.0)}, cores=2)
    assert seconds_by_root == {"a": pytest.approx(1.2 / (1.2 - 6.0 / 600.0)), "b": 600.0}


def test_a_root_that_declares_a_longer_interval_keeps_it_and_leaves_the_others_theirs():
    assert intervals({"a": Root(2.0, 1.2), "b": Root(10.0, 2.0), "c": Root(10.0, 2.0)}, cores=2) == {
        "a": 2.0,
        "b": 10.0,
        "c": 10.0,
    }


def test_the_mean_follows_the_newest_batches():
    mean = smoothed(None, 9.0)
    assert mean == 9.0
    for _ in range(12):
        mean = smoothed(mean, 0.5)
    assert mean == pytest.approx(0.5, abs=0.1)
