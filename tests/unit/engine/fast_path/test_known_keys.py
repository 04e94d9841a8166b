"""The known identities of a table, however many rows an identity has."""

import random
import time
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from include.engine.fast_path import known_keys
from include.engine.fast_path.known_keys import KnownKeys
from include.lake import locations
from include.spec import Append, Watermark

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def keys_with(minutes: float | None) -> KnownKeys:
    watermark = Watermark("at", minutes) if minutes is not None else None
    return KnownKeys("silver.readings", Append(unique=("id",), watermark=watermark), "at")


def rows_at(*times: datetime) -> pa.Table:
    return pa.table({"id": ["a"] * len(times), "at": pa.array(times, pa.timestamp("us", "UTC"))})


def micros(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@pytest.mark.parametrize("apart", [0, 1, 60_000_000, 120_000_000])
def test_a_row_repeats_a_stored_one_that_is_at_most_the_watermark_away(apart):
    known = keys_with(2)
    known.add(rows_at(NOON, NOON - timedelta(hours=1), NOON + timedelta(hours=1)))
    for moment in (micros(NOON) - apart, micros(NOON) + apart):
        assert known.repeats(("a",), moment)
    assert not known.repeats(("b",), micros(NOON))


def test_a_row_further_away_than_the_watermark_repeats_nothing():
    known = keys_with(2)
    known.add(rows_at(NOON, NOON - timedelta(hours=1)))
    assert known.repeats(("a",), micros(NOON) + 120_000_000)
    assert not known.repeats(("a",), micros(NOON) + 120_000_001)
    assert not known.repeats(("a",), micros(NOON) - 120_000_001)


def test_the_answers_are_those_of_a_look_at_every_stored_row():
    random_ = random.Random(3)
    known, stored = keys_with(0.5), []
    for _ in range(30):
        times = [NOON + timedelta(seconds=random_.randint(0, 3_000)) for _ in range(random_.randint(0, 4))]
        known.add(rows_at(*times))
        stored += times
        for _ in range(20):
            moment = NOON + timedelta(seconds=random_.randint(-100, 3_100))
            expected = any(abs(moment - other) <= timedelta(seconds=30) for other in stored)
            assert known.repeats(("a",), micros(moment)) == expected


def test_ten_thousand_rows_of_one_identity_cost_no_more_than_of_ten_thousand():
    """Each look once read all stored times of the identity: 0.6 ms a row."""
    known, moments = keys_with(1), [NOON + number * 2 * MINUTE for number in range(10_000)]
    known.add(rows_at(*moments))
    begin = time.process_time()
    assert not any(known.repeats(("a",), micros(moment + MINUTE) + 1) is None for moment in moments)
    assert time.process_time() - begin < 1


def test_what_is_known_is_bounded_by_stored_rows_and_not_only_by_their_identities(monkeypatch):
    monkeypatch.setattr(known_keys, "MOST_KEYS", 100)
    monkeypatch.setattr(KnownKeys, "_read", lambda self, minutes: None)
    known = keys_with(1)
    known.add(rows_at(*[NOON + number * MINUTE for number in range(101)]))
    known.load([micros(NOON)])
    assert not known.repeats(("a",), micros(NOON))


@pytest.mark.usefixtures("home")
def test_of_the_stored_rows_only_the_identities_of_the_minutes_are_read(monkeypatch):
    times = [None, NOON - 2 * MINUTE, NOON, NOON + timedelta(seconds=60.5), NOON + 2 * MINUTE]
    rows = pa.table(
        {"id": range(5), "at": pa.array(times, pa.timestamp("us", "UTC")), "value": ["a long text"] * len(times)}
    )
    write_deltalake(str(locations.table_path("silver.readings")), rows)
    found, read = list[pa.Table](), known_keys.read

    def noted(*arguments):
        found.append(read(*arguments))
        return found[-1]

    monkeypatch.setattr(known_keys, "read", noted)
    known = keys_with(None)
    known.at(0)
    assert known.load([micros(NOON)]) is None
    assert [part.to_pydict() for part in found] == [{"id": [2], "at": [NOON]}]
    # As many as may be known, and one more.
    known = keys_with(1)
    known.at(0)
    monkeypatch.setattr(known_keys, "MOST_KEYS", 2)
    assert known.load([micros(NOON)]) is None
    known = keys_with(2)
    known.at(0)
    assert known.load([micros(NOON)]) is not None


def test_as_many_as_may_be_known_stay_known(monkeypatch):
    monkeypatch.setattr(known_keys, "MOST_KEYS", 2)
    monkeypatch.setattr(KnownKeys, "_read", lambda self, minutes: None)
    known = keys_with(1)
    known.add(rows_at(NOON, NOON))
    known.load([micros(NOON)])
    assert known.repeats(("a",), micros(NOON))


def test_without_a_watermark_one_time_of_an_identity_is_kept():
    known = keys_with(None)
    known.add(rows_at(NOON, NOON + MINUTE, NOON + 2 * MINUTE))
    assert known._times == {("a",): [micros(NOON)]}
