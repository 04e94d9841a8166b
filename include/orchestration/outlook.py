"""What is known of the sources of flows: whether they answer, how far behind the flows are, what is about to expire."""

from sqlalchemy import Engine

from include.control import backlog
from include.control.supervision import Outlook
from include.ledger import kafka, lag
from include.ledger.lag import Lag
from include.spec import Table

# An alarm has to leave time to act: half of what Kafka keeps, or a day where only the size of the topic is limited.
ALARM_SHARE = 0.5
ALARM_SECONDS = 86_400


def look(engine: Engine, tables: list[Table]) -> dict[str, Outlook]:
    """By flow. Writes down how far each is behind. Raises Unreachable for the control database only."""
    found = {flow: one for flow, one in lag.look(tables, kafka.TIMEOUT_SECONDS).items() if one.has_begun}
    for flow, one in found.items():
        if one.unknown and not _waits(one):
            # Its start will name it: the checkpoint or the source table is damaged.
            print(f"{flow}: how far it is behind cannot be told: {one.unknown}")
    backlog.remember(engine, {flow: one.count for flow, one in found.items() if one.count is not None})
    growing = backlog.growing(engine)
    return {
        table.flow: Outlook(
            _waits(found.get(table.flow)), _grows(growing.get(table.flow)), _expires(found.get(table.flow))
        )
        for table in tables
    }


def _waits(found: Lag | None) -> str | None:
    """A table that is not there is nothing to wait for."""
    return found.unknown if found and found.is_away and found.unit != "versions" else None


def _grows(growth: tuple[int, int] | None) -> str | None:
    minutes = backlog.TREND_SECONDS // 60
    return growth and f"falls behind: {growth[0]:,} unread {minutes} minutes ago, {growth[1]:,} now"


def _expires(found: Lag | None) -> str | None:
    clock = found.expires if found else None
    if clock is None or clock.expires_in_seconds is None:
        return None
    alarm_seconds = ALARM_SHARE * clock.retention_seconds if clock.retention_seconds else ALARM_SECONDS
    if clock.expires_in_seconds > alarm_seconds:
        return None
    hours = clock.expires_in_seconds / 3600
    where = f"topic '{clock.topic}', partition {clock.partition},"
    return f"Kafka deletes unread records of {where} in {hours:.1f} h: {clock.why}"
