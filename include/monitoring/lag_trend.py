"""Whether a flow falls behind: what came to its source in the last minutes against what it read of it.

Nothing is kept for this. Where the flow stood at the earlier moment stands in the stamps of its commits; what its
source held then, in the source: Delta's log, the dates of files, and for Kafka the first offset whose record is later,
by the record's own time. A flow that reads faster than rows come in is catching up; how fast it reads says nothing
without what comes in.
"""

from bisect import bisect_right
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from deltalake.exceptions import DeltaError

from include.errors import SluiceError
from include.monitoring.lag import Lag
from include.monitoring.source_snapshot import Sources
from include.readers import checkpoint, landing_folder, position
from include.readers.delta_backlog import MOST_COMMITS, Volume
from include.readers.delta_log import Log
from include.spec import Delta, Files, Kafka, Table

# What is unread for no longer has only just come: no flow reads at once.
JUST_NOW_SECONDS = 60
# Less of what came is noise.
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
    """arrived, read: in the last `seconds`, in `unit`; None where the verdict needs no numbers or has none.

    caught_up_in_seconds: at this pace; None where it never will be.
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
        said = f"{self.verdict}: {self.arrived:,} {self.unit} came, {self.read:,} were read in {self.seconds:,.0f} s"
        soon = self.caught_up_in_seconds
        return said if soon is None else f"{said}, up to date in {soon / 60:,.0f} min"


def of(flow: Table, lag: Lag, sources: Sources) -> Trend:
    """Of a flow and its lag, by the same look at the sources. Its verdict is UNKNOWN where nobody can tell."""
    if lag.is_up_to_date:
        return Trend(Direction.UP_TO_DATE)
    if lag.unknown is not None or lag.seconds is None:
        return Trend(Direction.UNKNOWN)
    if flow.merges_in_windows:
        return Trend(Direction.WAITING)
    if flow.is_view or flow.schedule:
        return Trend(Direction.RESTING)
    if lag.seconds < max(JUST_NOW_SECONDS, 2 * flow.interval_seconds):
        return Trend(Direction.KEEPING_UP)
    try:
        moved = _moved(flow, lag, sources)
    except (SluiceError, DeltaError, OSError, ValueError, KeyError, TypeError):
        moved = None
    return Trend(Direction.UNKNOWN) if moved is None else judge(*moved, sources.now - sources.since)


def judge(unit: str, arrived: int, read: int, waiting: int, seconds: float) -> Trend:
    """waiting: what is unread now."""
    gained = read - arrived
    if not arrived and not read:
        verdict = Direction.STANDING_STILL
    elif abs(gained) <= NOISE_SHARE * arrived:
        verdict = Direction.KEEPING_DISTANCE
    else:
        verdict = Direction.CATCHING_UP if gained > 0 else Direction.FALLING_BEHIND
    soon = waiting * seconds / gained if verdict is Direction.CATCHING_UP else None
    return Trend(verdict, unit, seconds, arrived, read, soon)


def _moved(flow: Table, lag: Lag, sources: Sources) -> tuple[str, int, int, int] | None:
    """Unit, arrived, read, unread; None where the flow, or its source, cannot be followed back that far."""
    stamp = _stamp(flow.flow, sources.log(flow.name), sources.since)
    if stamp is None:
        return None
    if isinstance(flow.source, Kafka):
        return _of_kafka(flow.source, lag, stamp["source_to"], sources)
    if isinstance(flow.source, Files):
        return _of_files(flow, flow.source, lag, stamp, sources)
    assert isinstance(flow.source, Delta)
    return _of_delta(flow.source, lag, stamp["source_to"], sources)


def _stamp(flow: str, log: Log, moment: float) -> dict[str, Any] | None:
    """What the flow's newest commit up to that moment says of itself."""
    before = log.versions[: _later(log, moment)]
    for version in reversed(before[-MOST_COMMITS:]):
        said = log.commit(version).metadata
        if said.get("flow") == flow and said.get("source_to"):
            return said
    return None


def _later(log: Log, moment: float) -> int:
    """The place, among the log's versions, of the first that was committed after it."""
    return bisect_right(log.versions, moment, key=lambda version: log.commit(version).timestamp)


def _of_kafka(source: Kafka, lag: Lag, then: Any, sources: Sources) -> tuple[str, int, int, int] | None:
    arrived = read = 0
    for name, topic in sources.topics(source).items():
        stood = checkpoint.positions(then, name)
        for partition, span in topic.spans.items():
            arrived += span.end - span.end_then
            read += span.end - (lag.offsets or {})[name][partition] - stood.get(partition, span.begin)
    return lag.unit, arrived, read, lag.count or 0


def _of_files(
    flow: Table, source: Files, lag: Lag, stamp: dict[str, Any], sources: Sources
) -> tuple[str, int, int, int] | None:
    at = position.of(flow.flow)
    if at is None or at.generation != stamp["generation"]:
        return None
    taken = landing_folder.taken(at.checkpoint, at.offset)
    waiting = landing_folder.waiting(source, at.checkpoint, at.offset)
    dates_ms = [one.found_ms for one in taken] + [one.modified_ms for one in waiting]
    arrived = sum(date_ms > sources.since * 1000 for date_ms in dates_ms)
    read = sum(one.entry > int(stamp["source_to"]["logOffset"]) for one in taken)
    return lag.unit, arrived, read, len(waiting)


def _of_delta(source: Delta, lag: Lag, then: Any, sources: Sources) -> tuple[str, int, int, int] | None:
    feed = sources.feed(source)
    was_behind = feed.behind(then)
    place = _later(feed.log, sources.since)
    later = feed.log.versions[place:]
    came = feed.since(later[0]) if later else Volume()
    if was_behind.is_more or came.is_more or lag.is_more:
        return None
    # `was_behind` goes on to the newest version, so it holds what came, too.
    if was_behind.rows is not None and came.rows is not None and lag.rows is not None:
        return "rows", came.rows, was_behind.rows - lag.rows, lag.rows
    return "files", came.files, was_behind.files - (lag.files or 0), lag.files or 0
