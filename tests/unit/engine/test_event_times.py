"""Which times are late, or too far ahead to move a watermark: decided without Spark."""

import pytest

from include.engine.batch.watermark import EventTimes, micros
from include.spec import Watermark

DECLARED = Watermark("time", minutes=30)
NEWEST, LATEST = 10_000_000_000, 20_000_000_000
BORDER = NEWEST - micros(30)


@pytest.mark.parametrize(
    ("time", "broken"),
    [
        (BORDER, ()),
        (BORDER - 1, (DECLARED.rule,)),
        (NEWEST, ()),
        (LATEST, ()),
        (LATEST + 1, (DECLARED.ahead_rule,)),
        (None, ()),
    ],
)
def test_a_row_at_either_border_is_in_time_and_one_microsecond_further_is_not(time: int | None, broken: tuple):
    assert EventTimes(NEWEST, LATEST).broken(DECLARED, time) == broken


def test_without_a_newest_time_no_row_is_late_and_without_a_bound_none_is_ahead():
    assert EventTimes(None, LATEST).broken(DECLARED, 0) == ()
    assert EventTimes(NEWEST, None).broken(DECLARED, 10**17) == ()


def test_the_watermark_never_moves_back_and_passes_over_times_that_are_too_far_ahead():
    times = EventTimes(NEWEST, LATEST)
    assert times.after([NEWEST - 1, None]) == NEWEST
    assert times.after([NEWEST + 1, LATEST, LATEST + 1]) == LATEST
    assert times.after([LATEST + 1]) == times.after([]) == NEWEST
    assert EventTimes(None, None).after([None]) is None
