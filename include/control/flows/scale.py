"""How many executors a driver is to have: a pure function of its newest batches, of what arrives and what is unread."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import combinations
from statistics import median
from typing import Any

# The share of an executor's time that is planned for rows. The rest is for noise, and for rows that wait already.
UTILISATION = 0.7
# As shares of the size: a need between these two changes nothing. The upper one is a utilisation of 87.5 %, at which a
# driver still keeps up.
LEAST_NEED, MOST_NEED = 0.6, 1.25
# How long a smaller size must have been enough, without a backlog.
QUIET_SECONDS = 900.0
# Two decisions that are further apart have not seen the same load.
LONGEST_GAP_SECONDS = 180.0
# Rows that are unread for a shorter time have only just arrived.
JUST_NOW_SECONDS = 60.0
# With fewer batches, or more similar ones, nobody can tell what a batch costs and what its rows cost.
LEAST_BATCHES = 3
LEAST_SPREAD = 2.0
# The size of a batch now is the median of so many.
NEWEST_BATCHES = 5
# What `sample` keeps: so many of the newest, and of each order of size, in powers of two.
NEWEST_IN_SAMPLE, OF_EACH_ORDER = 10, 3


class Reason(StrEnum):
    """Why a driver has its size, for programs; `Decision.words` is for people."""

    KEEPS_UP = "KEEPS UP"
    MORE = "MORE"
    MORE_SEEN_ONCE = "MORE, SEEN ONCE"
    LESS = "LESS"
    LESS_NOT_YET = "LESS, NOT YET"
    AT_MOST = "AT ITS MOST"
    TOO_SMALL = "BATCHES TOO SMALL"
    UNKNOWN = "UNKNOWN"
    BOUNDS = "BOUNDS"


@dataclass(frozen=True)
class Batch:
    """A batch that had rows. executors: of its driver then, 1 or more."""

    rows: int
    seconds: float
    executors: int


@dataclass(frozen=True)
class Load:
    """What a flow has to read. arrivals: rows per second. backlog: unread rows. Both are None where they are unknown.

    parallelism: how many tasks read its source at once; None: as many as there are. batches: newest first.
    """

    flow: str
    arrivals: float | None
    backlog: int | None
    parallelism: int | None
    batches: tuple[Batch, ...]


@dataclass(frozen=True)
class Verdict:
    """What an earlier decision has found. need: in executors, not rounded. is_known: whether it knew every flow."""

    seconds_ago: float
    need: float
    has_backlog: bool
    is_known: bool


@dataclass(frozen=True)
class Observed:
    """A driver. size: as last decided. least, most: its declared bounds, in executors.

    cores: of an executor. catch_up_seconds: the declared time in which a backlog is to be read. verdicts: newest first.
    """

    size: int
    least: int
    most: int
    catch_up_seconds: float
    cores: int
    loads: tuple[Load, ...]
    verdicts: tuple[Verdict, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Observed":
        document: dict[str, Any] = json.loads(text)
        loads = tuple(
            Load(**{**load, "batches": tuple(Batch(**batch) for batch in load["batches"])})
            for load in document["loads"]
        )
        verdicts = tuple(Verdict(**verdict) for verdict in document["verdicts"])
        return cls(**{**document, "loads": loads, "verdicts": verdicts})


@dataclass(frozen=True)
class Cost:
    """What the batches of a flow cost: `seconds = fixed_seconds + rows / rows_per_second`, of one executor.

    is_split: whether the batches tell both apart; otherwise all their time counts as that of rows.
    """

    fixed_seconds: float
    rows_per_second: float
    is_split: bool


@dataclass(frozen=True)
class Decision:
    """size: executors from now on. verdict: for later decisions. inputs: `scale(inputs)` is this decision again."""

    size: int
    reason: Reason
    verdict: Verdict
    inputs: Observed

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Newest first, with its own."""
        return (self.verdict, *self.inputs.verdicts)

    @property
    def words(self) -> str:
        need, observed = self.verdict.need, self.inputs
        match self.reason:
            case Reason.MORE | Reason.LESS:
                return f"{observed.size} before, and {need:.1f} are needed"
            case Reason.MORE_SEEN_ONCE:
                return f"{need:.1f} are needed, and the next decision follows if it finds the same"
            case Reason.LESS_NOT_YET:
                return f"{need:.1f} are needed, and it waits for {QUIET_SECONDS / 60:.0f} minutes without a backlog"
            case Reason.AT_MOST:
                return f"{need:.1f} are needed, and {observed.most} are declared or can read at once"
            case Reason.TOO_SMALL:
                return "batches too small: most of their time is no work on rows, which more executors do not shorten"
            case Reason.UNKNOWN:
                return "too few batches or no measure of what is unread, so it stays"
            case Reason.BOUNDS:
                return f"{observed.size} before, and {observed.least} to {observed.most} are declared"
        return f"it keeps up: {need:.1f} are needed"


def scale(observed: Observed) -> Decision:
    """More after two verdicts that agree; fewer only after a quiet time; otherwise the size stays."""
    costs = {load.flow: cost_of(load, observed.cores) for load in observed.loads}
    need = sum(_useful(load, costs[load.flow], observed) for load in observed.loads)
    is_known = all(load.backlog is not None and load.arrivals is not None for load in observed.loads)
    is_known &= all(costs[load.flow] or not _has_backlog(load) for load in observed.loads)
    verdict = Verdict(0.0, need, any(map(_has_backlog, observed.loads)), is_known)
    size = min(max(observed.size, observed.least), observed.most)
    if size != observed.size:
        return Decision(size, Reason.BOUNDS, verdict, observed)
    size, reason = _size(observed, verdict, costs)
    return Decision(size, reason, verdict, observed)


def needs(observed: Observed) -> dict[str, float]:
    """By flow, the executors that would find work; 0 where too few batches tell."""
    return {load.flow: _useful(load, cost_of(load, observed.cores), observed) for load in observed.loads}


def _size(observed: Observed, verdict: Verdict, costs: dict[str, Cost | None]) -> tuple[int, Reason]:
    size, need = observed.size, verdict.need
    if need > MOST_NEED * size:
        if size == observed.most:
            return size, Reason.AT_MOST
        if not _is_worth_more(observed, costs):
            return size, Reason.TOO_SMALL
        if not _was_seen_before(observed):
            return size, Reason.MORE_SEEN_ONCE
        return min(math.ceil(need), observed.most), Reason.MORE
    if not verdict.is_known:
        return size, Reason.UNKNOWN
    if max(math.ceil(need), observed.least) <= LEAST_NEED * size:
        verdicts = (verdict, *observed.verdicts)
        smaller = max(math.ceil(greatest_need(verdicts)), observed.least)
        is_quiet = smaller <= LEAST_NEED * size and throughout(
            verdicts, lambda earlier: earlier.is_known and not earlier.has_backlog
        )
        return (smaller, Reason.LESS) if is_quiet else (size, Reason.LESS_NOT_YET)
    if sum(_need(load, costs[load.flow], observed) for load in observed.loads) > MOST_NEED * size:
        return size, Reason.AT_MOST
    return size, Reason.KEEPS_UP


def sample(batches: Iterable[Batch]) -> tuple[Batch, ...]:
    """The newest batches, and of each order of size the newest ones, which tells what a batch and its rows cost.

    batches: newest first.
    """
    kept: list[Batch] = []
    orders: Counter[int] = Counter()
    for batch in batches:
        order = int(math.log2(batch.rows / batch.executors))
        orders[order] += 1
        if len(kept) < NEWEST_IN_SAMPLE or orders[order] <= OF_EACH_ORDER:
            kept.append(batch)
    return tuple(kept)


def cost_of(load: Load, cores: int) -> Cost | None:
    """What the batches of a flow cost, by the medians of Theil and Sen, which a few odd batches do not move.

    None where there are too few batches.
    """
    points = [(batch.rows / _at_work(load, batch.executors, cores), batch.seconds) for batch in load.batches]
    if len(points) < LEAST_BATCHES:
        return None
    slopes = [
        (seconds - other_seconds) / (rows - other_rows)
        for (rows, seconds), (other_rows, other_seconds) in combinations(points, 2)
        if max(rows, other_rows) >= LEAST_SPREAD * min(rows, other_rows)
    ]
    # Of all pairs, at least a third tells both parts apart.
    if 3 * len(slopes) < math.comb(len(points), 2):
        return Cost(0.0, sum(rows for rows, _ in points) / sum(seconds for _, seconds in points), False)
    slope = max(median(slopes), 0.0)
    fixed_seconds = max(median(seconds - slope * rows for rows, seconds in points), 0.0)
    return Cost(fixed_seconds, 1 / slope if slope else math.inf, True)


def _at_work(load: Load, executors: float, cores: int) -> float:
    """The executors that can work at the flow at once."""
    return executors if load.parallelism is None else min(executors, max(load.parallelism / cores, 1.0))


def _need(load: Load, cost: Cost | None, observed: Observed) -> float:
    """The executors that read what arrives, and the backlog in the declared time."""
    if cost is None:
        return 0.0
    rows_per_second = (load.arrivals or 0.0) + (load.backlog or 0) / observed.catch_up_seconds
    return rows_per_second / (UTILISATION * cost.rows_per_second)


def _useful(load: Load, cost: Cost | None, observed: Observed) -> float:
    """The part of its need that finds work."""
    return _at_work(load, _need(load, cost, observed), observed.cores)


def _is_worth_more(observed: Observed, costs: dict[str, Cost | None]) -> bool:
    """Whether more executors would shorten the batches of the flow that needs most."""
    load = max(observed.loads, key=lambda load: _need(load, costs[load.flow], observed))
    cost = costs[load.flow]
    assert cost
    if not cost.is_split:
        # Perhaps its batches take as long with any number of rows. Only a backlog is a reason to try.
        return _has_backlog(load)
    return cost.fixed_seconds <= median(batch.seconds for batch in load.batches[:NEWEST_BATCHES]) / 2


def _has_backlog(load: Load) -> bool:
    seconds = 2 * median(batch.seconds for batch in load.batches) if load.batches else 0.0
    return (load.backlog or 0) > (load.arrivals or 0.0) * max(JUST_NOW_SECONDS, seconds)


def _was_seen_before(observed: Observed) -> bool:
    """Whether the decision before this one found that this size is too small."""
    last = next(iter(observed.verdicts), None)
    return last is not None and last.seconds_ago <= LONGEST_GAP_SECONDS and last.need > MOST_NEED * observed.size


def greatest_need(verdicts: Iterable[Verdict]) -> float:
    """Of the quiet time, in executors."""
    return max(verdict.need for verdict in verdicts if verdict.seconds_ago <= QUIET_SECONDS)


def throughout(verdicts: Iterable[Verdict], test: Callable[[Verdict], bool]) -> bool:
    """Whether every verdict of the quiet time passes, and there was no gap. verdicts: newest first."""
    expected_seconds = 0.0
    for verdict in verdicts:
        if not test(verdict) or verdict.seconds_ago > expected_seconds:
            return False
        if verdict.seconds_ago >= QUIET_SECONDS:
            return True
        expected_seconds = verdict.seconds_ago + LONGEST_GAP_SECONDS
    return False
