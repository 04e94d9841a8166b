"""The search for what makes a whole fail, by halves, without Spark."""

import pytest

from include.checkpoints.offset_ranges import OffsetRange
from include.engine.batch import bisection, failed_rows


class Things:
    """Things of which some fail, alone and with others. flaky: fail only so many times."""

    def __init__(self, failing: set[int], flaky: dict[int, int] | None = None) -> None:
        self.failing, self.flaky, self.runs = failing, dict(flaky or {}), 0

    def error_of(self, begin: int, end: int) -> Exception | None:
        self.runs += 1
        for thing in range(begin, end):
            if self.flaky.get(thing, 0):
                self.flaky[thing] -= 1
                return ValueError("a lost task")
        return ValueError("poison") if self.failing & set(range(begin, end)) else None

    def search(self, count: int) -> bisection.Search:
        return bisection.search(count, self.error_of, ValueError("poison"))


@pytest.mark.parametrize("failing", [{0}, {99}, {7, 8}, {0, 50, 99}, set(range(40, 60))], ids=str)
def test_exactly_what_fails_alone_is_found_in_order(failing):
    result = Things(failing).search(100)
    assert [row.position for row in result.found] == sorted(failing)
    assert result.has_passed and not result.is_over and not result.is_broken


def test_one_thing_among_a_million_takes_few_runs():
    things = Things({123_456})
    assert [row.position for row in things.search(1_000_000).found] == [123_456]
    assert things.runs <= 2 * 20 + 1


def test_what_failed_once_and_passes_then_is_not_found():
    result = Things(set(), {3: 2}).search(8)
    assert result.found == [] and result.has_passed


def test_where_everything_fails_the_search_ends_soon_and_says_so():
    result = Things(set(range(100_000))).search(100_000)
    assert result.is_broken and result.is_over
    assert len(result.found) == bisection.MOST_WITHOUT_ONE


def test_a_batch_of_one_failing_row_is_no_proof_of_a_sound_definition():
    result = Things({0}).search(1)
    assert result.is_broken and not result.is_over


def test_where_too_much_fails_the_search_ends_at_its_limit(monkeypatch):
    monkeypatch.setattr(bisection, "MOST_ROWS", 30)
    result = Things(set(range(0, 200, 2))).search(200)
    assert result.is_over and not result.is_broken
    assert len(result.found) == 30


@pytest.mark.parametrize("sizes", [[1, 5, 1, 1], [5, 1, 1, 5, 1], [1, 1, 1], [9, 1, 9], [5, 5, 5]], ids=str)
def test_what_fails_only_together_with_what_is_before_it_is_found(sizes):
    def error_of(end: int, left_out: frozenset[int]) -> Exception | None:
        total = sum(size for position, size in enumerate(sizes[:end]) if position not in left_out)
        return ValueError("overflow") if total > 6 else None

    found = [row.position for row in bisection.search_together(len(sizes), error_of)]
    left = [size for position, size in enumerate(sizes) if position not in found]
    assert sum(left) <= 6
    assert all(
        sum(size for other, size in enumerate(sizes[:position]) if other not in found) + sizes[position] > 6
        for position in found
    )


def test_where_too_much_fails_together_nothing_is_found():
    def error_of(end: int, left_out: frozenset[int]) -> Exception | None:
        return ValueError("overflow") if end - len(left_out) > 6 else None

    assert bisection.search_together(1_000, error_of) is None


@pytest.mark.parametrize("wanted", [[], [0], [7], [2, 3, 6], list(range(8))], ids=str)
def test_what_holds_of_parts_is_narrowed_to_the_things_of_which_it_holds(wanted):
    assert bisection.that_hold(8, lambda begin, end: bool({*range(begin, end)} & {*wanted})) == wanted


def test_offsets_are_divided_over_the_ranges_of_all_partitions():
    ranges = [OffsetRange("t", 0, 10, 13), OffsetRange("t", 1, 0, 2)]
    assert failed_rows._part(ranges, 2, 4) == [OffsetRange("t", 0, 12, 13), OffsetRange("t", 1, 0, 1)]
    parts = [range_ for part in failed_rows._between(ranges, [1, 3]) for range_ in part]
    assert parts == [OffsetRange("t", 0, 10, 11), OffsetRange("t", 0, 12, 13), OffsetRange("t", 1, 1, 2)]
