"""Spans of time that cover the buckets of a batch."""

from hypothesis import given
from hypothesis import strategies as st

from include.engine.rows.deduplicate import MOST_SPANS, condition, spans, within_reach

WIDTHS = st.sampled_from([60, 3_600, 86_400])
NUMBERS = st.lists(st.integers(-1_000_000, 1_000_000), max_size=200)
LIMITS = st.integers(1, 60)


@given(NUMBERS, WIDTHS, LIMITS)
def test_spans_cover_every_bucket_in_no_more_pieces_than_allowed_sorted_and_apart(numbers, width, limit):
    starts = [number * width for number in numbers]
    covering = spans(starts, width, limit)
    for start in starts:
        assert any(begin <= start and start + width <= end for begin, end in covering)
    assert len(covering) <= limit
    assert all(begin < end for begin, end in covering)
    assert all(end < begin for (_, end), (begin, _) in zip(covering, covering[1:], strict=False))


@given(NUMBERS, WIDTHS, LIMITS)
def test_spans_begin_and_end_at_buckets_that_were_asked_for(numbers, width, limit):
    starts = {number * width for number in numbers}
    for begin, end in spans(starts, width, limit):
        assert begin in starts
        assert end - width in starts


@given(st.sets(st.integers(-1_000_000, 1_000_000), max_size=200), WIDTHS)
def test_with_room_for_all_spans_hold_the_buckets_and_nothing_else(numbers, width):
    covering = spans((number * width for number in numbers), width, limit=200)
    covered = {start for begin, end in covering for start in range(begin, end, width)}
    assert covered == {number * width for number in numbers}


def test_neighbours_become_one_span_whose_end_is_not_in_it():
    assert spans([120, 0, 60, 60], 60) == [(0, 180)]
    assert spans([0, 120], 60) == [(0, 60), (120, 180)]


def test_where_there_are_too_many_the_nearest_are_joined():
    assert spans([0, 120, 10_000_020], 60, limit=2) == [(0, 180), (10_000_020, 10_000_080)]


def test_a_condition_is_about_its_column_and_has_a_term_for_rows_without_a_time():
    assert condition("time", [0, 60], "minute") == (
        "((`time` >= timestamp_seconds(0) AND `time` < timestamp_seconds(120)))"
    )
    assert condition("time", [None], "day") == "(`time` IS NULL)"
    assert condition("time", [None, -86_400], "day") == (
        "((`time` >= timestamp_seconds(-86400) AND `time` < timestamp_seconds(0)) OR `time` IS NULL)"
    )


def test_buckets_within_reach_are_all_that_a_margin_touches_and_a_missing_time_reaches_only_itself():
    assert within_reach([0, None], "minute", 0) == {0, None}
    assert within_reach([0, None], "minute", 60) == {-60, 0, 60, None}
    assert within_reach([3_600], "hour", 3_601) == {-3_600, 0, 3_600, 7_200, 10_800}


def test_a_margin_widens_a_condition_at_both_ends_by_whole_seconds():
    assert condition("time", [60], "minute", margin_seconds=1.5) == (
        "((`time` >= timestamp_seconds(58) AND `time` < timestamp_seconds(122)))"
    )


def test_a_batch_that_touches_nothing_reads_nothing():
    assert condition("time", [], "hour") == "false"


def test_a_condition_over_a_thousand_hours_has_no_more_than_fifty_spans():
    text = condition("time", [hour * 7_200 for hour in range(1_000)], "hour")
    assert text.count("timestamp_seconds") <= 2 * MOST_SPANS
