"""The generated events: the same for the same seed, untidy in known ways, identified by device and time."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from include.examples.events import IMPLAUSIBLE_BPM, LATE_SECONDS, TROUBLES, Event, events

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
PER_SECOND = 50


@pytest.fixture(scope="module")
def many() -> list[Event]:
    return list(events(seed=7, count=20_000, start=START, per_second=PER_SECOND))


def reading(event: Event) -> dict:
    return json.loads(event.value)


def moment(event: Event) -> datetime:
    return datetime.fromisoformat(reading(event)["time"])


def fields_of_wrong_type(event: Event) -> list[str]:
    """The fields whose value has another type than in a good event."""
    types = {"device_id": str, "version": str, "model": str, "heart_bpm": int, "kcal": float}
    fields = [field for field, type_ in types.items() if type(reading(event)[field]) is not type_]
    try:
        moment(event)
    except ValueError:
        fields.append("time")
    return fields


def test_one_seed_gives_one_story_and_another_seed_another():
    first, second, other_seed = (list(events(seed, 500, START, PER_SECOND)) for seed in (1, 1, 2))
    assert first == second
    assert first != other_seed


@given(st.integers(0, 2**32), st.integers(0, 300))
@settings(max_examples=20, deadline=None)
def test_a_longer_story_begins_as_the_shorter_one(seed: int, count: int):
    longer = list(events(seed, 300, START, PER_SECOND))
    assert list(events(seed, count, START, PER_SECOND)) == longer[:count]


def test_every_kind_of_trouble_is_about_one_event_in_a_hundred(many: list[Event]):
    kinds = Counter(event.kind for event in many)
    assert set(kinds) == {"good", *TROUBLES}
    assert all(100 <= kinds[kind] <= 300 for kind in TROUBLES)


def test_readings_of_one_device_differ_in_time_unless_one_is_repeated(many: list[Event]):
    readable_events = [event for event in many if event.kind in ("good", "late", "implausible")]
    identities = Counter((event.key, moment(event)) for event in readable_events)
    assert identities.most_common(1)[0][1] == 1


def test_a_crowded_second_still_gives_no_device_one_time_twice():
    all_events = list(events(seed=3, count=20_000, start=START, per_second=100_000))
    readable_events = [event for event in all_events if event.kind in ("good", "late", "implausible")]
    assert len({(event.key, moment(event)) for event in readable_events}) == len(readable_events)


def test_a_repeated_event_is_an_earlier_good_one_byte_for_byte(many: list[Event]):
    good_events: set[tuple] = set()
    for event in many:
        if event.kind == "repeated":
            assert (event.key, event.value) in good_events
        elif event.kind == "good":
            good_events.add((event.key, event.value))


def test_a_late_event_lies_as_far_back_as_declared_and_a_good_one_in_its_own_time(many: list[Event]):
    for number, event in enumerate(many):
        delay = (
            (START + timedelta(seconds=number / PER_SECOND) - moment(event)).total_seconds()
            if (event.kind in ("good", "late"))
            else None
        )
        if event.kind == "late":
            assert LATE_SECONDS[0] - 1 <= delay <= LATE_SECONDS[1] + 1
        elif event.kind == "good":
            assert abs(delay) < 1


def test_each_kind_is_as_broken_as_it_says(many: list[Event]):
    wrong_fields = set()
    for event in many:
        if event.kind == "tombstone":
            assert event.value is None
        elif event.kind == "empty":
            assert event.value == b""
        elif event.kind == "malformed":
            with pytest.raises(ValueError):
                json.loads(event.value)
        elif event.kind == "implausible":
            assert reading(event)["heart_bpm"] in IMPLAUSIBLE_BPM
        elif event.kind == "wrong type":
            [wrong_field] = fields_of_wrong_type(event)
            wrong_fields.add(wrong_field)
        else:
            assert 45 <= reading(event)["heart_bpm"] <= 190
        assert event.key is not None
    assert wrong_fields == {"heart_bpm", "kcal", "time"}


def test_a_good_event_bears_its_device_as_key_and_no_field_is_missing(many: list[Event]):
    good_events = [event for event in many if event.kind == "good"]
    for event in good_events:
        assert reading(event)["device_id"].encode() == event.key
        assert set(reading(event)) == {"device_id", "time", "version", "model", "heart_bpm", "kcal"}
        assert fields_of_wrong_type(event) == []


def test_a_start_in_another_time_zone_is_told_in_utc():
    berlin = START.astimezone(timezone(timedelta(hours=2)))
    assert list(events(1, 200, berlin, PER_SECOND)) == list(events(1, 200, START, PER_SECOND))
