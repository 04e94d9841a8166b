"""Tells whether a flow falls behind, and whether a table is as fresh as promised.

What arrived in the source in the last minutes is compared with what the flow read: the flow's earlier position is in
the metadata of its commits. An alarm waits for the samples of a supervisor. The age of a table's oldest unread data is
compared with the promised age.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from deltalake.exceptions import DeltaError

from include.catalog import Catalog
from include.control.supervision import lag_history
from include.delta.backlog import MOST_COMMITS
from include.delta.delta_log import DeltaLog
from include.errors import SluiceError
from include.flows import sources as flow_sources
from include.flows.lag import Lag, Movement, SourceSnapshot
from include.spec import Flow, Table

# Data that is unread for a shorter time has only just arrived.
JUST_NOW_SECONDS = 60
# Smaller differences, as a share of what arrived, are noise.
NOISE_SHARE = 0.01


class Direction(StrEnum):
    UP_TO_DATE = "up to date"
    KEEPING_UP = "keeping up"
    CATCHING_UP = "catching up"
    FALLING_BEHIND = "falling behind"
    KEEPING_DISTANCE = "keeping its distance"
    STANDING_STILL = "standing still"
    WAITING = "waits for its window"
    RESTING = "waits for its schedule"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Trend:
    """The trend of a flow. arrived, read: the amounts in the last `seconds`, in `unit`; None where there are no
    numbers.

    caught_up_in_seconds: the time to catch up at this rate; None where the flow never will.
    """

    verdict: Direction
    unit: str = ""
    seconds: float | None = None
    arrived: int | None = None
    read: int | None = None
    caught_up_in_seconds: float | None = None

    @property
    def words(self) -> str:
        if self.arrived is None or self.read is None or self.seconds is None:
            return str(self.verdict)
        amounts = f"{self.verdict}: {self.arrived:,} {self.unit} came, {self.read:,} were read in {self.seconds:,.0f} s"
        seconds_left = self.caught_up_in_seconds
        return amounts if seconds_left is None else f"{amounts}, up to date in {seconds_left / 60:,.0f} min"


def of(flow: Flow, lag: Lag, sources: SourceSnapshot, samples: Sequence[int] = ()) -> Trend:
    """Returns the trend of a flow from its lag, measured with the same `sources`; UNKNOWN where there is none.

    samples: the flow's, by `lag_history`. Where a supervisor takes them, they alone decide whether it falls behind.
    """
    if direction := _without_movement(flow, lag):
        return Trend(direction)
    try:
        moved = movement(flow, lag, sources)
    except (SluiceError, DeltaError, OSError, ValueError, KeyError, TypeError):
        moved = None
    seconds = sources.now_seconds - sources.since
    trend = Trend(Direction.UNKNOWN) if moved is None else classify(*moved, seconds)
    if falls_behind(flow, lag, samples):
        return replace(trend, verdict=Direction.FALLING_BEHIND, caught_up_in_seconds=None)
    if samples and trend.verdict is Direction.FALLING_BEHIND:
        # Batches that take minutes, or a burst.
        return replace(trend, verdict=Direction.KEEPING_DISTANCE)
    return trend


def falls_behind(flow: Table, lag: Lag, samples: Sequence[int]) -> bool:
    """Whether a flow falls behind by the samples of its backlog, which is an alarm. lag: its newest one."""
    return _without_movement(flow, lag) is None and lag_history.is_growing(samples)


def _without_movement(flow: Table, lag: Lag) -> Direction | None:
    """Returns the verdict on a flow that needs no look at what came and what was read; None where it needs one."""
    if lag.is_up_to_date:
        return Direction.UP_TO_DATE
    if lag.unknown is not None or lag.seconds is None:
        return Direction.UNKNOWN
    if flow.merges_in_windows:
        return Direction.WAITING
    if flow.is_view or flow.schedule:
        return Direction.RESTING
    return Direction.KEEPING_UP if lag.seconds < max(JUST_NOW_SECONDS, 2 * flow.interval_seconds) else None


def classify(unit: str, arrived: int, read: int, waiting: int, seconds: float) -> Trend:
    """Returns the trend from the amounts that arrived, were read and are unread, in `seconds`. waiting: unread now."""
    gain = read - arrived
    if not arrived and not read:
        verdict = Direction.STANDING_STILL
    elif abs(gain) <= NOISE_SHARE * arrived:
        verdict = Direction.KEEPING_DISTANCE
    else:
        verdict = Direction.CATCHING_UP if gain > 0 else Direction.FALLING_BEHIND
    seconds_left = waiting * seconds / gain if verdict is Direction.CATCHING_UP else None
    return Trend(verdict, unit, seconds, arrived, read, seconds_left)


def movement(flow: Flow, lag: Lag, sources: SourceSnapshot) -> Movement | None:
    """Returns what came and was read since `sources.since`; None where nobody can look back that far."""
    metadata = _metadata_at(flow.flow, sources.log(flow.name), sources.since)
    if metadata is None:
        return None
    return flow_sources.of(flow).movement(lag, metadata, sources)


def _metadata_at(flow: str, log: DeltaLog, moment: float) -> dict[str, Any] | None:
    """Returns the userMetadata of the flow's newest commit up to that moment, in seconds since 1970."""
    earlier_versions = log.versions[: log.committed_by(moment)]
    for version in reversed(earlier_versions[-MOST_COMMITS:]):
        metadata = log.commit(version).metadata
        if metadata.get("flow") == flow and metadata.get("source_to"):
            return metadata
    return None


@dataclass(frozen=True)
class Freshness:
    """A table's freshness.

    seconds: the age of the oldest commit, record or file that is in a source, direct or indirect, and not in the table.
    It is 0 where there is none, and None where it is unknown. by: the flow that must still read it.
    promised_seconds: the table's `fresh_minutes`; None without a promise.
    """

    table: str
    seconds: float | None
    by: str | None
    promised_seconds: float | None

    @property
    def is_kept(self) -> bool | None:
        """None without a promise, and where the age is unknown."""
        if self.promised_seconds is None or self.seconds is None:
            return None
        return self.seconds <= self.promised_seconds

    @property
    def words(self) -> str:
        if self.promised_seconds is None:
            return ""
        promise = f"promised {self.promised_seconds / 60:g} min"
        if self.seconds is None:
            return f"unknown, {promise}"
        if self.is_kept:
            return f"fresh, {promise}"
        return f"{self.seconds / 60:,.1f} min old, {promise}: see {self.by}"


def measure(tables: Catalog, lags: Mapping[str, Lag]) -> dict[str, Freshness]:
    """Returns the freshness of each table, in graph order."""
    lags_of: dict[str, dict[str, Lag]] = {}
    for table in tables.tables.values():
        direct = {reader.flow: lags[reader.flow] for reader in table.readers}
        # A pinned source is as old as it is declared to be, whatever its table has still to read.
        inherited = [lags_of[source.table] for source in table.upstream if not source.is_pinned]
        lags_of[table.name] = {flow: lag for group in (*inherited, direct) for flow, lag in group.items()}
    return {name: _of(tables.tables[name], table_lags.values()) for name, table_lags in lags_of.items()}


def _of(table: Table, upstream_lags: Iterable[Lag]) -> Freshness:
    """Returns the freshness of one table.

    upstream_lags: the lags of its flows and of the flows of all upstream tables.
    """
    promised = None if table.fresh_minutes is None else table.fresh_minutes * 60
    ages = [(lag.seconds if lag.unknown is None else None, lag.flow) for lag in upstream_lags]
    known_ages = [(seconds, flow) for seconds, flow in ages if seconds is not None]
    oldest, by = max(known_ages, key=lambda entry: entry[0], default=(0.0, ""))
    unknown = next((flow for seconds, flow in ages if seconds is None), None)
    # A known age beyond the promise counts, whatever else is unknown.
    if unknown and (promised is None or oldest <= promised):
        return Freshness(table.name, None, unknown, promised)
    return Freshness(table.name, oldest, by if oldest else None, promised)
