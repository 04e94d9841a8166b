"""The generated page views: the same for the same seed, untidy in known ways."""

import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime

import pytest

from include.examples.events import Event
from include.examples.views import REPEATED_WITHIN_SECONDS, TROUBLES, views
from tests.conftest import ROOT
from tests.support.expected.views import EMPTY_ROW, decode

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
PER_SECOND = 5


@pytest.fixture(scope="module")
def many() -> list[Event]:
    return list(views(seed=7, count=20_000, start=START, per_second=PER_SECOND))


def test_one_seed_gives_one_story_and_a_longer_one_begins_as_the_shorter(many: list[Event]):
    assert list(views(7, 500, START, PER_SECOND)) == many[:500]
    assert list(views(8, 500, START, PER_SECOND)) != many[:500]


def start_producer(*options: str) -> int:
    """Start a producer without events. Returns its seed."""
    command = [sys.executable, "-m", "include.examples.producer", "--count", "0", *options]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return int(result.stderr.split("--seed ")[1].split()[0])


def test_two_starts_of_the_producer_repeat_no_view_unless_they_are_given_one_seed():
    first, second = (
        {
            decode(view.value)[0]["view_id"]
            for view in views(start_producer(), 200, START, PER_SECOND)
            if view.kind == "good"
        }
        for _ in range(2)
    )
    assert len(first) > 100
    assert first.isdisjoint(second)
    assert start_producer("--seed", "7") == 7


def test_every_kind_of_trouble_is_about_one_view_in_a_hundred(many: list[Event]):
    kinds = Counter(view.kind for view in many)
    assert set(kinds) == {"good", *TROUBLES}
    assert all(100 <= kinds[kind] <= 300 for kind in TROUBLES)


def test_good_and_late_views_can_be_read_whole_in_both_schemas_and_the_broken_kinds_cannot(many: list[Event]):
    readable_kinds = ("good", "late", "repeated")
    for view in many:
        row, errors = decode(view.value)
        assert (errors == []) == (view.kind in readable_kinds)
        assert (row == EMPTY_ROW) == (view.kind not in readable_kinds)
        assert view.key == (row["document_id"] or view.key.decode()).encode()
    assert {view.value[4] for view in many if view.kind == "good"} == {1, 2}


def test_a_view_is_repeated_within_a_minute_and_no_other_two_are_alike(many: list[Event]):
    first: dict[bytes, int] = {}
    for number, view in enumerate(many):
        if view.kind == "repeated":
            assert number - first[view.value] <= REPEATED_WITHIN_SECONDS * PER_SECOND
        elif view.kind in ("good", "late"):
            assert first.setdefault(view.value, number) == number
