"""How far flows are behind, minute by minute, and whether that grows."""

from sqlalchemy import Engine, select

from include.control.store import database
from include.control.store.schema import backlogs

# Long enough to tell a trend from a burst.
TREND_SECONDS = 600
SAMPLES = 8


def remember(engine: Engine, behind: dict[str, int]) -> None:
    """Write down how far these flows are behind now, and forget what is older than a trend. Raises Unreachable."""
    with database.transaction(engine) as connection:
        now = database.now(connection)
        # Later than now: by a clock that was put back since.
        old = (backlogs.c.at < now - TREND_SECONDS) | (backlogs.c.at > now)
        connection.execute(backlogs.delete().where(old))
        if behind:
            rows = [{"flow": flow, "at": now, "behind": count} for flow, count in behind.items()]
            # SQLite's clock counts milliseconds, in one of which two supervisors may look.
            connection.execute(database.insert(connection, backlogs).on_conflict_do_nothing(), rows)


def growing(engine: Engine) -> dict[str, tuple[int, int]]:
    """From how many to how many the backlog of a flow has grown, for those that fall behind. Raises Unreachable."""
    with database.reading(engine) as connection:
        rows = connection.execute(select(backlogs).order_by(backlogs.c.at)).all()
    series: dict[str, list[int]] = {}
    for row in rows:
        series.setdefault(row.flow, []).append(row.behind)
    return {flow: (behind[0], behind[-1]) for flow, behind in series.items() if is_growing(behind)}


def is_growing(behind: list[int]) -> bool:
    """Whether every sample of the newer half is above every one of the older half: a saw-tooth is not."""
    half = len(behind) // 2
    return len(behind) >= SAMPLES and min(behind[half:]) > max(behind[:half])
