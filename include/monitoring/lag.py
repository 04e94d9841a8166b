"""How far flows are behind their sources: without a JVM, and also while everything is down."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from deltalake.exceptions import DeltaError

from include.errors import SluiceError, Unreachable
from include.monitoring.source_snapshot import TIMEOUT_SECONDS, Sources, Topic
from include.readers import checkpoint, kafka_retention, landing_folder, position, refreshes
from include.readers import starting_version as beginning
from include.readers.kafka_retention import Clock, Place
from include.readers.position import Position
from include.settings import settings
from include.spec import Delta, Files, Kafka, Table


@dataclass(frozen=True)
class Lag:
    """What a flow has not read. None: its source has no such thing, or nobody knows.

    count, unit: the measure of its source: records of a topic, files of a folder, versions of a table. A view counts
        what changed as well as what came, so it says no rows and bytes.
    versions, files, bytes, rows: of a table those that hold new data, except `versions`, which are all.
    offsets: of Kafka, by topic and partition; the marks of transactions count.
    seconds: the age of the oldest unread commit, record or file, by its own time; 0 where nothing is unread.
    expires: where and when Kafka deletes what is unread, if it does.
    is_more: files, bytes and rows are those of the first commits only, and there are more.
    has_begun: whether it has committed a batch.
    unknown: why nobody knows, in a sentence. is_away: because its source does not answer.
    """

    flow: str
    unit: str
    count: int | None = None
    versions: int | None = None
    files: int | None = None
    bytes: int | None = None
    rows: int | None = None
    offsets: dict[str, dict[int, int]] | None = None
    seconds: float | None = None
    expires: Clock | None = None
    is_more: bool = False
    has_begun: bool = True
    unknown: str | None = None
    is_away: bool = False

    @property
    def hours_until_loss(self) -> float | None:
        """Until Kafka deletes the first unread record; None where it deletes none."""
        seconds = self.expires.expires_in_seconds if self.expires else None
        return None if seconds is None else seconds / 3600

    @property
    def is_up_to_date(self) -> bool:
        """Whether nothing is unread. A version that brought no data is nothing."""
        return self.unknown is None and not (self.count if self.files is None else self.files)

    @property
    def words(self) -> str:
        """The lag in its source's measure."""
        if self.unknown:
            return "unknown: no broker" if self.is_away and self.unit == "records" else self.unknown
        if not self.has_begun:
            return "nothing read yet"
        # It is within the version that it began with.
        return f"{self.count or self.files or 0:,} {self.unit if self.count or not self.files else 'files'}"


def look(flows: Iterable[Table], timeout_seconds: float = TIMEOUT_SECONDS) -> dict[str, Lag]:
    """By flow. timeout_seconds: for which a broker may keep all of them waiting. Raises nothing: see `Lag.unknown`."""
    asked = list(flows)
    return of_all(asked, Sources(asked, timeout_seconds))


def of_all(flows: Iterable[Table], sources: Sources) -> dict[str, Lag]:
    """The lags of the flows that `sources` was made for."""
    # Those that read Kafka last: until then the broker may have answered.
    return {flow.flow: of(flow, sources) for flow in sorted(flows, key=lambda one: isinstance(one.source, Kafka))}


def of(flow: Table, sources: Sources) -> Lag:
    """The lag of one of the flows that `sources` was made for."""
    unit = "records" if isinstance(flow.source, Kafka) else "files" if isinstance(flow.source, Files) else "versions"
    lag = Lag(flow.flow, unit)
    try:
        if flow.is_view:
            assert isinstance(flow.source, Delta)
            return _of_view(lag, flow.name, flow.source, sources)
        at = position.of(flow.flow)
        lag = replace(lag, has_begun=at is not None and at.committed is not None)
        if isinstance(flow.source, Kafka):
            return _of_kafka(lag, flow.source, at, sources)
        if isinstance(flow.source, Files):
            return _of_files(lag, flow.source, at, sources)
        assert isinstance(flow.source, Delta)
        return _of_delta(lag, flow.source, at, sources)
    except Unreachable as error:
        return replace(lag, unknown=str(error), is_away=True)
    except (SluiceError, DeltaError, OSError, ValueError, KeyError, TypeError) as error:
        return replace(lag, unknown=str(error))


def _of_kafka(lag: Lag, source: Kafka, at: Position | None, sources: Sources) -> Lag:
    clocks = [
        clock
        for name, topic in sources.topics(source).items()
        for clock in kafka_retention.clocks(settings().kafka, _places(name, topic, at), topic.limits)
    ]
    offsets: dict[str, dict[int, int]] = {}
    for one in clocks:
        offsets.setdefault(one.topic, {})[one.partition] = one.unread
    oldest_at = min((one.oldest_at for one in clocks if one.oldest_at is not None), default=None)
    return replace(
        lag,
        count=sum(one.unread for one in clocks),
        offsets=offsets,
        seconds=_age(oldest_at, sources),
        expires=kafka_retention.soonest(clocks),
    )


def _places(name: str, topic: Topic, at: Position | None) -> list[Place]:
    """A flow that has read nothing begins with what there is; a partition that comes later is read from 0 on."""
    read = None if at is None or at.committed is None else checkpoint.positions(at.offset, name)
    return [
        Place(name, partition, span.begin if read is None else read.get(partition, 0), span.begin, span.end)
        for partition, span in topic.spans.items()
    ]


def _of_files(lag: Lag, source: Files, at: Position | None, sources: Sources) -> Lag:
    waiting = (
        landing_folder.waiting(source, at.checkpoint, at.offset) if at else list(landing_folder.landed(source).values())
    )
    oldest_at = min((file.modified_ms / 1000 for file in waiting), default=None)
    size = sum(file.bytes for file in waiting)
    return replace(lag, count=len(waiting), files=len(waiting), bytes=size, seconds=_age(oldest_at, sources))


def _of_delta(lag: Lag, source: Delta, at: Position | None, sources: Sources) -> Lag:
    feed = sources.feed(source)
    newest = feed.log.newest
    if at is not None and at.offset is not None:
        versions, volume = newest - checkpoint.read_version(at.offset), feed.behind(at.offset)
    elif (first := beginning.first_version(lag.flow, source)) is not None:
        versions, volume = newest - first + 1, feed.since(first)
    else:
        versions, volume = newest + 1, feed.all()
    return replace(
        lag,
        count=versions,
        versions=versions,
        files=volume.files,
        bytes=volume.bytes,
        rows=volume.rows,
        seconds=_age(volume.oldest_at, sources),
        is_more=volume.is_more,
    )


def _of_view(lag: Lag, view: str, source: Delta, sources: Sources) -> Lag:
    # With what a stream passes over: of a view, a row that was deleted or changed makes a difference.
    feed = sources.feed(replace(source, changes=True))
    done = refreshes.newest(view)
    read = done.read.get(source.table, -1) if done else -1
    volume = feed.all() if read < 0 else feed.since(read + 1)
    return replace(
        lag,
        count=feed.log.newest - read,
        versions=feed.log.newest - read,
        files=volume.files,
        seconds=_age(volume.oldest_at, sources),
        is_more=volume.is_more,
        has_begun=done is not None,
    )


def _age(oldest_at: float | None, sources: Sources) -> float:
    return 0.0 if oldest_at is None else max(0.0, sources.now - oldest_at)
