"""What is known of flows from outside: whether their sources answer, how far they are behind, what is about to expire,
whether their rows reach the table, and whether it keeps its promise.
"""

from contextlib import suppress

from deltalake.exceptions import DeltaError
from sqlalchemy import Engine

from include.catalog import Catalog
from include.control import incidents
from include.control.decide import State
from include.control.store import database
from include.control.supervision import lag_history
from include.control.supervision.supervision import SourceHealth
from include.errors import SluiceError
from include.monitoring import freshness, lag, rejected_rows
from include.monitoring.lag import Lag
from include.readers import kafka_broker
from include.spec import Table

# An alarm has to leave time to act: half of what Kafka keeps, or a day where only the size of the topic is limited.
ALARM_SHARE = 0.5
ALARM_SECONDS = 86_400


def look(engine: Engine, tables: Catalog) -> dict[str, SourceHealth]:
    """By flow, and by table where one without a flow of its own breaks its promise.

    Writes down how far each flow is behind. Raises Unreachable for the control database only.
    """
    promises = any(table.fresh_minutes is not None for table in tables.tables.values())
    lags = lag.look((tables.readers if promises else tables.flows).values(), kafka_broker.TIMEOUT_SECONDS)
    found = {flow: one for flow, one in lags.items() if one.has_begun and flow in tables.flows}
    for flow, one in found.items():
        if one.unknown and not _waits(one):
            # Its start will name it: the checkpoint or the source table is damaged.
            print(f"{flow}: how far it is behind cannot be told: {one.unknown}")
    lag_history.remember(engine, {flow: one.count for flow, one in found.items() if one.count is not None})
    growing, broken = lag_history.growing(engine), _broken_promises(tables, lags) if promises else {}
    with database.reading(engine) as connection:
        now, known = database.now(connection), incidents.of_state(connection, State.REJECTING)
    outlooks = {
        flow: SourceHealth(
            _waits(found.get(flow)),
            _grows(growing.get(flow)),
            _expires(found.get(flow)),
            _rejects(table, now, flow in known),
            broken.pop(table.name, None),
        )
        for flow, table in tables.flows.items()
    }
    return outlooks | {table: SourceHealth(not_fresh=words) for table, words in broken.items()}


def _broken_promises(tables: Catalog, lags: dict[str, Lag]) -> dict[str, str]:
    """By table."""
    look = freshness.look(tables, lags)
    return {name: f"what it lacks is {found.words}" for name, found in look.items() if found.is_kept is False}


def _rejects(flow: Table, now: float, is_known: bool) -> str | None:
    """What cannot be read is named by the start of the flow."""
    with suppress(SluiceError, DeltaError, OSError, ValueError, KeyError, TypeError):
        return rejected_rows.of(flow, now, is_known)
    return None


def _waits(found: Lag | None) -> str | None:
    """A table that is not there is nothing to wait for."""
    return found.unknown if found and found.is_away and found.unit != "versions" else None


def _grows(growth: tuple[int, int] | None) -> str | None:
    minutes = lag_history.TREND_SECONDS // 60
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
