"""Which times are late, or too far ahead to move a watermark: decided without Spark."""

from types import SimpleNamespace

import pytest

from include.engine.rows import watermark
from include.engine.rows.watermark import EventTimes, micros
from include.spec import Append, Delta, Flow, Watermark

DECLARED = Watermark("time", minutes=30)
NEWEST, LATEST = 10_000_000_000, 20_000_000_000
BORDER = NEWEST - micros(30)
WRITE = Append(watermark=DECLARED)
TABLE = Flow(name="silver.t", source=Delta("bronze.t"), comment="a test", schema="time TIMESTAMP", write=WRITE)


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


def test_a_batch_moves_the_watermark_up_to_a_bound_behind_the_moment_when_it_was_planned(monkeypatch):
    def latest(at: float | None) -> int | None:
        monkeypatch.setattr(
            watermark.checkpoint_files, "planned_batch", lambda *place: SimpleNamespace(at=at, place=place)
        )
        return watermark.latest(TABLE, "checkpoint", 7)

    assert latest(2.5) == 2_500_000 + 24 * 3_600_000_000
    assert latest(None) is None


@pytest.mark.parametrize(
    ("recorded", "latest", "is_read"),
    [
        ({"time": 5}, 5, False),
        ({"time": 5}, None, False),
        ({"time": 6}, 5, True),
        ({"other": 5}, None, True),
        (None, 5, True),
    ],
)
def test_the_rows_of_the_table_are_read_only_if_no_commit_tells_a_time_up_to_the_bound(
    monkeypatch, recorded: dict | None, latest: int | None, is_read: bool
):
    class Read(Exception): ...

    def read(*_: object) -> None:
        raise Read

    monkeypatch.setattr(watermark.resume_position, "last_commit_metadata", lambda table: {"newest": recorded})
    monkeypatch.setattr(watermark, "read_newest", read)
    if is_read:
        with pytest.raises(Read):
            watermark.newest(None, TABLE, latest)
    else:
        assert watermark.newest(None, TABLE, latest) == 5


def test_the_rules_of_a_watermark_hold_for_all_rows_before_there_is_a_border():
    late, ahead = watermark.rules(DECLARED, EventTimes(None, None))
    assert (late.name, late.condition, late.otherwise) == (DECLARED.rule, "true", "quarantine")
    assert (ahead.name, ahead.condition, ahead.otherwise) == (DECLARED.ahead_rule, "true", "warn")
    late, ahead = watermark.rules(DECLARED, EventTimes(NEWEST, LATEST))
    assert str(BORDER) in late.condition
    assert str(LATEST) in ahead.condition
