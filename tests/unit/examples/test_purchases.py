"""The generated changes of the shop: the same for the same seed, untidy in known ways, each about a row that exists."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from include.examples import purchases
from include.examples.purchases import KINDS, LATE_SECONDS, Change, changes, customers
from include.examples.views import USERS

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
PER_SECOND = 0.2
COUNT = 10_000


@pytest.fixture(scope="module")
def many() -> list[Change]:
    return list(changes(seed=7, count=COUNT, start=START, per_second=PER_SECOND))


def test_one_seed_gives_one_story_and_a_longer_one_begins_as_the_shorter(many: list[Change]):
    assert list(changes(7, 500, START, PER_SECOND)) == many[:500]
    assert list(changes(8, 500, START, PER_SECOND)) != many[:500]
    assert list(customers(7)) == list(customers(7)) != list(customers(8))


def test_every_kind_of_change_is_about_one_in_twenty(many: list[Change]):
    kinds = Counter(change.kind for change in many)
    assert set(kinds) == {"good", *KINDS}
    assert all(0.03 * COUNT <= kinds[kind] <= 0.07 * COUNT for kind in KINDS)


def test_customers_are_the_users_of_the_page_views():
    ids = [user for user, _ in customers(7)]
    assert len(set(ids)) == len(ids) == USERS
    assert (ids[0], ids[-1]) == ("user-000", f"user-{USERS - 1}")


def test_a_late_purchase_lies_as_far_back_as_declared_and_another_one_in_its_own_time(many: list[Change]):
    for number, change in enumerate(many):
        if change.statement == purchases.BUY:
            _, amount, moment = change.values
            seconds = (START + timedelta(seconds=number / PER_SECOND) - moment).total_seconds()
            first, last = LATE_SECONDS if change.kind == "late" else (0, 0)
            assert first <= round(seconds, 3) <= last
            assert (amount > 0) == (change.kind != "no amount")


def test_what_is_corrected_cancelled_or_comes_back_was_there_and_only_once(many: list[Change]):
    bought: dict[tuple, Decimal] = {}
    gone: list[str] = []
    for change in many:
        match change.statement:
            case purchases.BUY:
                user, amount, moment = change.values
                assert (user, moment) not in bought
                bought[user, moment] = amount
            case purchases.CORRECT:
                assert bought[change.values[1:]] == 0 < change.values[0]
                bought[change.values[1:]] = change.values[0]
            case purchases.CANCEL:
                assert bought.pop(change.values) > 0
            case purchases.LEAVE:
                gone.append(change.values[0])
            case purchases.RETURN:
                gone.remove(change.values[0])
