"""What the flows of a driver have to read, without a JVM: rows that arrive, unread rows, and what batches took."""

from collections.abc import Iterable

from deltalake.exceptions import DeltaError

from include.control.flows.scale import Batch, Load, sample
from include.errors import SluiceError
from include.flows.lag import TIMEOUT_SECONDS, Lag, SourceSnapshot
from include.monitoring import lag as lags
from include.monitoring import query_progress, trend
from include.spec import Flow

# Long enough for a source that commits once a minute, and short enough to see a step at once.
ARRIVALS_SECONDS = 120.0
# Of a flow with a batch every two seconds, the last hour.
MOST_BATCHES = 2_000
# The units in which batches are counted, too.
COUNTED = ("records", "rows")


def measure(flows: Iterable[Flow], timeout_seconds: float = TIMEOUT_SECONDS) -> tuple[Load, ...]:
    """Returns the load of each flow. It raises nothing but Unreachable: what is not known is None.

    timeout_seconds: the maximum wait for the broker, for all flows.
    """
    listed = list(flows)
    sources = SourceSnapshot(listed, ARRIVALS_SECONDS, timeout_seconds)
    flow_lags = lags.lags_of(listed, sources)
    return tuple(_load(flow, flow_lags[flow.flow], sources) for flow in listed)


def _load(flow: Flow, lag: Lag, sources: SourceSnapshot) -> Load:
    movement = None
    if lag.unknown is None:
        try:
            movement = trend.movement(flow, lag, sources)
        except (SluiceError, DeltaError, OSError, ValueError, KeyError, TypeError):
            movement = None
    counted = movement if movement and movement.unit in COUNTED else None
    partitions = sum(map(len, lag.offsets.values())) if lag.offsets else None
    return Load(
        flow.flow,
        max(counted.arrived, 0) / ARRIVALS_SECONDS if counted else None,
        max(counted.unread, 0) if counted else None,
        partitions,
        sample(_batches(flow.flow)),
    )


def _batches(flow: str) -> Iterable[Batch]:
    """Yields the newest batches with rows on a cluster, newest first."""
    for row in query_progress.newest(flow, MOST_BATCHES):
        rows, spent_ms, executors = row["input_rows"], row["trigger_execution_ms"], row["executors"]
        if row["event"] == query_progress.BATCH and rows and spent_ms and executors:
            yield Batch(rows, spent_ms / 1_000, executors)
