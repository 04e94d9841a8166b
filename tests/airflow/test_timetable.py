"""The next time at which a schedule is due."""

import math
from datetime import UTC, datetime

import pytest

from include.airflow.supervisor.reconcile import next_tick


@pytest.mark.parametrize(
    ("schedule", "after", "due"),
    [
        ("0 * * * *", "2026-11-22T07:59:59+00:00", "2026-11-22T08:00:00+00:00"),
        ("0 * * * *", "2026-11-22T08:00:00+00:00", "2026-11-22T09:00:00+00:00"),
        ("30 3 * * 1", "2026-11-22T07:00:00+00:00", "2026-11-23T03:30:00+00:00"),
        # Many time zones set their clocks back in this night. The schedule is in UTC.
        ("30 2 * * *", "2026-10-24T23:00:00+00:00", "2026-10-25T02:30:00+00:00"),
    ],
)
def test_the_next_time_of_a_schedule_is_that_of_cron_in_utc(schedule: str, after: str, due: str):
    next_time = next_tick(schedule, datetime.fromisoformat(after).timestamp())
    assert datetime.fromtimestamp(next_time, UTC) == datetime.fromisoformat(due)


def test_a_day_that_never_comes_is_never_due():
    assert next_tick("0 0 30 2 *", 0.0) == math.inf
