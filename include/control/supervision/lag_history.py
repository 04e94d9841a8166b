"""Samples of each flow's backlog, one per minute, and whether the backlog grows."""

from collections.abc import Sequence

from sqlalchemy import Engine, select

from include.control.store import database
from include.control.store.schema import backlogs

# Long enough to tell a trend from a burst.
TREND_SECONDS = 600
SAMPLES = 8


def remember(engine: Engine, backlog_of: dict[str, int]) -> None:
    """Store a sample of each flow's backlog, and delete samples older than a trend. Raises Unreachable."""
    with database.transaction(engine) as connection:
        now = database.now(connection)
        # A sample from the future was written before the clock was set back.
        old = (backlogs.c.at < now - TREND_SECONDS) | (backlogs.c.at > now)
        connection.execute(backlogs.delete().where(old))
        if backlog_of:
            rows = [{"flow": flow, "at": now, "behind": count} for flow, count in backlog_of.items()]
            # Two supervisors may write in the same millisecond, the resolution of SQLite's clock.
            connection.execute(database.insert(connection, backlogs).on_conflict_do_nothing(), rows)


def samples(engine: Engine) -> dict[str, list[int]]:
    """By flow, the samples of its backlog in the last `TREND_SECONDS`, oldest first. Raises Unreachable."""
    with database.reading(engine) as connection:
        now = database.now(connection)
        # While no supervisor is at work, nobody deletes the others.
        is_recent = backlogs.c.at.between(now - TREND_SECONDS, now)
        rows = connection.execute(select(backlogs).where(is_recent).order_by(backlogs.c.at)).all()
    series: dict[str, list[int]] = {}
    for row in rows:
        series.setdefault(row.flow, []).append(row.behind)
    return series


def is_growing(samples: Sequence[int]) -> bool:
    """Whether every sample of the newer half exceeds every sample of the older half. A saw-tooth does not grow.

    Too few samples do not tell.
    """
    half = len(samples) // 2
    return len(samples) >= SAMPLES and min(samples[half:]) > max(samples[:half])
