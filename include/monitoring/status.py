"""How every flow and table is: wanted and seen, how far behind, how fresh, and where that is going; without a JVM."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from include.catalog import Catalog
from include.control import orders
from include.control.store import database
from include.control.supervision import supervision
from include.errors import SluiceError
from include.monitoring import alarms, freshness, lag_trend, outdated_rows
from include.monitoring import lag as lags
from include.monitoring.freshness import Freshness
from include.monitoring.lag import Lag
from include.monitoring.lag_trend import Trend
from include.monitoring.source_snapshot import TIMEOUT_SECONDS, Sources
from include.readers import position, refreshes
from include.recovery import backfills
from include.settings import settings
from include.spec import Table

# In the place of a state: it is nothing that the supervisor keeps running.
IN_WINDOWS, VIEW = "IN WINDOWS", "VIEW"
# Times the interval that a table declares: what is longer is worth a word.
LONGER = 1.5


@dataclass(frozen=True)
class FlowStatus:
    """One flow, or a view and one of its sources. wanted: running, draining or stopped; state: as
    `control.decide.State`, with its reason. None where the control database does not answer; a flow of windows, and a
    view, has a state of its own.

    in_flight: its batch that is planned and not committed. stale: why its table, or some of its rows, should be made
    again, and since when. alarm: the open one of the flow or table, and who has taken it on.
    invalid_definition: why its table goes on with the last good definition. longer_interval_seconds: from one batch to
    the next, where its driver's load makes that longer than its table declares.
    """

    flow: str
    table: str
    wanted: str | None
    state: str | None
    reason: str
    lag: Lag
    trend: Trend
    freshness: Freshness
    in_flight: int | None
    stale: tuple[str, ...] = ()
    alarm: str | None = None
    invalid_definition: str | None = None
    longer_interval_seconds: float | None = None

    def as_json(self) -> dict[str, Any]:
        lag, trend = asdict(self.lag), asdict(self.trend)
        lag |= {"hours_until_loss": self.lag.hours_until_loss, "is_up_to_date": self.lag.is_up_to_date}
        fresh = {**asdict(self.freshness), "is_kept": self.freshness.is_kept}
        return {**asdict(self), "lag": lag, "trend": trend, "freshness": fresh}


def look(tables: Catalog, timeout_seconds: float = TIMEOUT_SECONDS) -> list[FlowStatus]:
    """Every flow and view, in graph order. timeout_seconds: for which a broker may keep this waiting."""
    flows = list(tables.readers.values())
    sources = Sources(flows, timeout_seconds)
    seen = _seen(tables)
    found = lags.of_all(flows, sources)
    fresh = freshness.look(tables, found)
    stale, open_alarms = backfills.stale_or_nothing(), alarms.by_target()
    older_rows, longer = outdated_rows.by_table(tables), _longer_intervals(flows)
    return [
        FlowStatus(
            flow.flow,
            flow.name,
            *seen[flow.flow],
            found[flow.flow],
            lag_trend.of(flow, found[flow.flow], sources),
            fresh[flow.name],
            _in_flight(flow.flow),
            (*(backfills.words(one) for one in stale if one.table == flow.name), *older_rows.get(flow.name, ())),
            open_alarms.get(flow.flow) or open_alarms.get(flow.name),
            tables.warnings.get(flow.name),
            longer.get(flow.flow),
        )
        for flow in flows
    ]


def _seen(tables: Catalog) -> dict[str, tuple[str | None, str | None, str]]:
    """By flow, what is wanted, its state and why."""
    found: dict[str, tuple[str | None, str | None, str]] = {
        flow: (None, VIEW, refreshes.lacks(table))
        if table.is_view
        else (None, IN_WINDOWS if table.merges_in_windows else None, "")
        for flow, table in tables.readers.items()
    }
    try:
        engine = database.connect(settings().control_url)
        for driver, flows in tables.drivers().items():
            shown = supervision.show(engine, driver, [flow.flow for flow in flows])
            found |= {flow: (wanted, one.state, one.reason) for flow, (wanted, one) in shown.items()}
    except SluiceError as error:
        found = {flow: (None, state, reason or str(error)) for flow, (_, state, reason) in found.items()}
    return found


def _longer_intervals(flows: Iterable[Table]) -> dict[str, float]:
    try:
        told = orders.intervals(database.connect(settings().control_url))
    except SluiceError:
        return {}
    declared = {flow.flow: flow.interval_seconds for flow in flows}
    return {flow: seconds for flow, seconds in told.items() if seconds > LONGER * declared.get(flow, math.inf)}


def _in_flight(flow: str) -> int | None:
    try:
        at = position.of(flow)
    except SluiceError:
        return None
    return at.in_flight if at else None


def rows(table: str) -> int | None:
    """Rows in the newest version, from the log's statistics; None where the table is not stored."""
    found = stored(table)
    return None if found is None else found.count()


def rows_or_none(table: str) -> int | None:
    """The same, and None also where its log cannot be read."""
    try:
        return rows(table)
    except (DeltaError, OSError):
        return None


def lag(flow: Table) -> str:
    """How far the flow is behind its source, in words."""
    return lags.look([flow])[flow.flow].words


def stored(table: str) -> DeltaTable | None:
    try:
        return DeltaTable(str(settings().table_path(table)))
    except TableNotFoundError:
        return None
