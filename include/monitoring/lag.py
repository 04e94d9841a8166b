"""Measures how far flows are behind their sources, without a JVM, and also while drivers and brokers are down."""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from deltalake.exceptions import DeltaError

from include.checkpoints import checkpoint_files
from include.control.supervision.lag_history import TREND_SECONDS
from include.errors import SluiceError, Unreachable
from include.flows import refreshes
from include.flows import sources as flow_sources
from include.flows.lag import TIMEOUT_SECONDS, Lag, SourceSnapshot
from include.kafka.broker import NoSuchTopic
from include.spec import Delta, Flow


class Measured(NamedTuple):
    """The lags of some flows, by flow, and the look at their sources that they are taken from."""

    lags: dict[str, Lag]
    sources: SourceSnapshot


def look(flows: Iterable[Flow], timeout_seconds: float = TIMEOUT_SECONDS) -> Measured:
    """Measures the lag of each flow. It raises nothing: see `Lag.unknown`.

    timeout_seconds: the maximum wait for the broker, for all flows.
    """
    listed = list(flows)
    sources = SourceSnapshot(listed, TREND_SECONDS, timeout_seconds)
    return Measured(lags_of(listed, sources), sources)


def measure(flows: Iterable[Flow], timeout_seconds: float = TIMEOUT_SECONDS) -> dict[str, Lag]:
    """Returns the lags of `look`."""
    return look(flows, timeout_seconds).lags


def lags_of(flows: Iterable[Flow], sources: SourceSnapshot) -> dict[str, Lag]:
    """Returns the lags of the flows that `sources` was made for."""
    # Kafka flows come last, because the broker may answer meanwhile.
    return {flow.flow: lag_of(flow, sources) for flow in sorted(flows, key=lambda flow: flow.source.reads_topics)}


def lag_of(flow: Flow, sources: SourceSnapshot) -> Lag:
    """Returns the lag of one of the flows that `sources` was made for."""
    lag = Lag(flow.flow, flow.source.unit, cluster=flow.source.cluster)
    if sources.lake_outage:
        return replace(lag, unknown=str(sources.lake_outage), is_away=True, is_lake_away=True)
    try:
        if flow.is_view:
            return _of_view(lag, flow.name, flow.source_as(Delta), sources)
        flow_position = checkpoint_files.position_of(flow.flow)
        lag = replace(lag, has_begun=flow_position is not None and flow_position.committed is not None)
        return flow_sources.of(flow).lag(lag, flow_position, sources)
    except Unreachable as error:
        return replace(lag, unknown=str(error), is_away=True, is_topic_missing=isinstance(error, NoSuchTopic))
    except (SluiceError, DeltaError, OSError, ValueError, KeyError, TypeError) as error:
        return replace(lag, unknown=str(error))


def _of_view(lag: Lag, view: str, source: Delta, sources: SourceSnapshot) -> Lag:
    refresh = refreshes.newest(view)
    if source.is_pinned:
        return replace(lag, count=0, versions=0, files=0, seconds=0.0, has_begun=refresh is not None)
    # The change feed includes deleted and changed rows, which matter to a view.
    feed = sources.feed(replace(source, changes=True))
    read = refresh.read.get(source.table, -1) if refresh else -1
    volume = feed.all() if read < 0 else feed.since(read + 1)
    return replace(
        lag,
        count=feed.log.newest - read,
        versions=feed.log.newest - read,
        files=volume.files,
        seconds=sources.age(volume.oldest_at),
        is_more=volume.is_more,
        has_begun=refresh is not None,
    )
