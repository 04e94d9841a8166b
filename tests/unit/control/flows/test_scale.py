"""How many executors a driver gets: by properties, and by a simulated queue with noise."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.control.flows import scale as scaling
from include.control.flows.scale import (
    MOST_NEED,
    QUIET_SECONDS,
    UTILISATION,
    Batch,
    Decision,
    Load,
    Observed,
    Reason,
    Verdict,
    cost_of,
    sample,
    scale,
)

MINUTE = 60.0
HOUR = 3_600.0


def batches(fixed_seconds: float, rows_per_second: float, rows: list[int], executors: int = 1) -> tuple[Batch, ...]:
    """Batches without noise."""
    return tuple(Batch(count, fixed_seconds + count / rows_per_second / executors, executors) for count in rows)


UNIT = UTILISATION * 1_000
SPLIT = batches(0.5, 1_000, [500, 1_000, 2_000, 4_000, 8_000])
EQUAL = batches(0.5, 1_000, [1_000] * 5)


def driver(
    size: int = 1,
    *,
    arrivals: float | None = 0.0,
    backlog: int | None = 0,
    of: tuple[Batch, ...] = SPLIT,
    parallelism: int | None = None,
    verdicts: tuple[Verdict, ...] = (),
    least: int = 1,
    most: int = 10,
    cores: int = 1,
) -> Observed:
    load = Load("bronze.events", arrivals, backlog, parallelism, of)
    return Observed(size, least, most, 600.0, cores, (load,), verdicts)


def quiet(need: float, minutes: int = 16) -> tuple[Verdict, ...]:
    return tuple(Verdict(MINUTE * ago, need, False, True) for ago in range(1, minutes + 1))


@dataclass
class Queue:
    """A driver that reads all that is unread in batches, one after the other. Its supervisor decides each minute.

    rate: of arrivals, by the second. Executors come `STARTS_SECONDS` after they were asked for, and then help the
    running batch.
    """

    STARTS_SECONDS = 20
    INTERVAL_SECONDS = 2
    SEEN_SECONDS = 120

    rate: Callable[[float], float]
    seed: int = 0
    fixed_seconds: float = 0.5
    rows_per_second: float = 1_000.0
    noise: float = 0.1
    most: int = 16
    now: float = 0.0
    arrived: float = 0.0
    read: float = 0.0
    size: int = 1
    running: int = 1
    decisions: list[tuple[float, Decision]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)
        self._done: deque[Batch] = deque(maxlen=2_000)
        self._samples: deque[tuple[float, float]] = deque([(0.0, 0.0)])
        self._starting: tuple[float, int] | None = None
        # Of the running batch: its rows, when it began, the seconds that are left of its fixed part, and its rows left.
        self._rows, self._began, self._fixed, self._left = 0, -math.inf, 0.0, 0.0

    def run(self, until: float) -> "Queue":
        while self.now < until:
            self.now += 1
            self.arrived += max(0.0, self.rate(self.now) * self._noise())
            if self._starting and self.now >= self._starting[0]:
                self.running, self._starting = self._starting[1], None
            self._work(1.0)
            if self.now % MINUTE == 0:
                self._decide()
        return self

    def _noise(self) -> float:
        return math.exp(self.noise * self._random.gauss(0, 1))

    def _work(self, seconds: float) -> None:
        while seconds > 0:
            if not self._rows:
                if self.now - seconds < self._began + self.INTERVAL_SECONDS or self.backlog < 1:
                    return
                self._rows, self._began = int(self.backlog), self.now - seconds
                self._fixed, self._left = self.fixed_seconds * self._noise(), self._rows * self._noise()
            fixed = min(seconds, self._fixed)
            self._fixed, seconds = self._fixed - fixed, seconds - fixed
            needed = self._left / self.rows_per_second / self.running
            if needed > seconds:
                self._left -= seconds * self.rows_per_second * self.running
                return
            seconds -= needed
            self._done.appendleft(Batch(self._rows, self.now - seconds - self._began, self.running))
            self.read, self._rows = self.read + self._rows, 0

    @property
    def backlog(self) -> float:
        return self.arrived - self.read

    def _decide(self) -> None:
        self._samples.append((self.now, self.arrived))
        while self._samples[1][0] <= self.now - self.SEEN_SECONDS:
            self._samples.popleft()
        then, arrived = self._samples[0]
        arrivals = (self.arrived - arrived) / (self.now - then)
        load = Load("bronze.events", arrivals, int(self.backlog), None, sample(self._done))
        verdicts = tuple(
            replace(decision.verdict, seconds_ago=self.now - at) for at, decision in reversed(self.decisions[-20:])
        )
        decision = scale(Observed(self.size, 1, self.most, 600.0, 1, (load,), verdicts))
        self.decisions.append((self.now, decision))
        if decision.size != self.size:
            self.size = decision.size
            self._starting = self.now + self.STARTS_SECONDS, self.size

    def changes(self) -> list[tuple[float, int]]:
        """When the size changed, and to what."""
        return [(at, decision.size) for at, decision in self.decisions if decision.size != decision.inputs.size]


def steps(seed: int, base: float) -> Queue:
    """One hour of a load that needs `base` executors, two hours of ten times that, and two hours of it again."""
    return Queue(lambda at: base * UNIT * (10 if HOUR <= at < 3 * HOUR else 1), seed)


AMOUNTS = st.integers(0, 100_000)
HISTORIES = st.lists(st.floats(0, 30), max_size=20).map(
    lambda needs: tuple(Verdict(MINUTE * (ago + 1), need, False, True) for ago, need in enumerate(needs))
)
ANY_BATCHES = st.lists(
    st.builds(Batch, st.integers(1, 100_000), st.floats(0.01, 100), st.integers(1, 10)), max_size=12
).map(tuple)
DRIVERS = st.builds(
    lambda size, arrivals, backlog, of, parallelism, verdicts, cores: driver(
        size, arrivals=arrivals, backlog=backlog, of=of, parallelism=parallelism, verdicts=verdicts, cores=cores
    ),
    size=st.integers(0, 12),
    arrivals=st.one_of(st.none(), st.floats(0, 100_000)),
    backlog=st.one_of(st.none(), AMOUNTS),
    of=ANY_BATCHES,
    parallelism=st.one_of(st.none(), st.integers(1, 32)),
    verdicts=HISTORIES,
    cores=st.integers(1, 8),
)


@given(DRIVERS)
def test_a_size_is_within_its_bounds_and_a_decision_is_replayed_from_its_stored_inputs(observed: Observed):
    decision = scale(observed)
    assert observed.least <= decision.size <= observed.most
    assert decision.verdict.need >= 0
    assert scale(Observed.from_json(observed.to_json())) == decision
    assert decision.words


@given(DRIVERS, st.floats(0, 100_000), AMOUNTS)
def test_more_rows_never_lead_to_a_smaller_size(observed: Observed, more_arrivals: float, more_backlog: int):
    (load,) = observed.loads
    if load.arrivals is None or load.backlog is None:
        return
    more = replace(load, arrivals=load.arrivals + more_arrivals, backlog=load.backlog + more_backlog)
    lower, higher = scale(observed), scale(replace(observed, loads=(more,)))
    assert higher.verdict.need >= lower.verdict.need
    # More arrivals can turn a backlog into rows that have only just arrived, which ends the wait to go in.
    if higher.verdict.has_backlog >= lower.verdict.has_backlog:
        assert higher.size >= lower.size


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("base", [0.5, 0.8, 0.95])
def test_ten_times_the_load_finds_its_size_in_three_decisions_and_so_does_a_tenth_of_it(seed: int, base: float):
    queue = steps(seed, base).run(HOUR)
    queue.run(HOUR + 3 * MINUTE)
    found = queue.size
    assert 10 * base / MOST_NEED <= found <= 16
    queue.run(3 * HOUR)
    assert queue.size == found
    queue.run(4 * HOUR)
    changes = [at for at, _ in queue.changes() if at >= 3 * HOUR]
    assert queue.size <= 2
    assert changes[0] >= 3 * HOUR + QUIET_SECONDS
    assert len(changes) <= 3


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("base", [0.5, 0.8, 0.95])
def test_a_backlog_is_gone_within_the_declared_time(seed: int, base: float):
    declared_seconds = 600
    jump = steps(seed, base).run(HOUR + 1.2 * declared_seconds)
    assert jump.backlog <= 10 * base * UNIT * MINUTE
    # The source was away for half an hour.
    outage = Queue(lambda at: base * UNIT * (1_800 if at == HOUR else 1), seed).run(HOUR + 1.2 * declared_seconds)
    assert outage.backlog <= base * UNIT * MINUTE


@pytest.mark.parametrize("needed", [0.3, 0.9, 1.3, 1.9, 2.6, 3.8, 5.1, 7.5])
def test_a_steady_load_has_one_size(needed: float):
    queue = Queue(lambda _: needed * UNIT, seed=7).run(HOUR)
    size = queue.size
    queue.run(5 * HOUR)
    # It may go in once from what its first minutes have led to.
    assert len({changed for at, changed in queue.changes() if at > HOUR} - {size}) <= 1
    assert needed / MOST_NEED <= queue.size <= max(1, math.ceil(needed / scaling.LEAST_NEED) + 1)


@pytest.mark.parametrize("seed", range(2))
def test_a_day_of_ten_to_one_has_ten_changes_at_most(seed: int):
    def rate(at: float) -> float:
        return UNIT * (1 + 9 * (1 - math.cos(2 * math.pi * at / 24 / HOUR)) / 2)

    assert len(Queue(rate, seed).run(24 * HOUR).changes()) <= 10


def test_the_cost_of_a_batch_and_of_its_rows_is_told_apart_by_batches_of_several_sizes_and_drivers_of_several_sizes():
    of = (*batches(0.5, 1_000, [1_000, 4_000, 9_000], 3), *batches(0.5, 1_000, [500, 2_000, 3_000]))
    cost = cost_of(driver(of=of).loads[0], 1)
    assert cost and cost.is_split
    assert cost.fixed_seconds == pytest.approx(0.5)
    assert cost.rows_per_second == pytest.approx(1_000)
    odd = cost_of(driver(of=(replace(of[0], seconds=120.0), *of)).loads[0], 1)
    assert odd and odd.fixed_seconds == pytest.approx(0.5, abs=0.1)
    assert odd.rows_per_second == pytest.approx(1_000, rel=0.1)


def test_batches_of_one_size_are_all_rows_and_too_few_are_nothing():
    cost = cost_of(driver(of=EQUAL).loads[0], 1)
    assert cost and not cost.is_split
    assert cost.rows_per_second == pytest.approx(1_000 / 1.5)
    assert cost_of(driver(of=EQUAL[:2]).loads[0], 1) is None


def test_batches_that_take_no_longer_with_more_rows_need_no_executor():
    of = tuple(Batch(rows, 2.0 - rows / 100_000, 1) for rows in (100, 1_000, 10_000, 20_000))
    decision = scale(driver(3, arrivals=5_000, of=of))
    assert decision.verdict.need == 0
    assert decision.reason is Reason.LESS_NOT_YET


def test_it_goes_out_after_two_verdicts_that_agree():
    observed = driver(1, arrivals=3_000, backlog=100_000)
    first = scale(observed)
    assert (first.size, first.reason) == (1, Reason.MORE_SEEN_ONCE)
    seen = replace(first.verdict, seconds_ago=MINUTE)
    second = scale(replace(observed, verdicts=(seen,)))
    assert (second.size, second.reason) == (math.ceil(second.verdict.need), Reason.MORE)
    late = replace(seen, seconds_ago=HOUR)
    assert scale(replace(observed, verdicts=(late,))).reason is Reason.MORE_SEEN_ONCE
    calm = replace(seen, need=1.0)
    assert scale(replace(observed, verdicts=(calm, seen))).reason is Reason.MORE_SEEN_ONCE


def test_it_goes_in_only_after_fifteen_minutes_without_a_backlog_or_a_gap():
    observed = driver(6, arrivals=700, verdicts=quiet(1.0))
    assert (scale(observed).size, scale(observed).reason) == (1, Reason.LESS)
    for spoilt in (
        quiet(1.0, minutes=10),
        (*quiet(1.0)[:9], replace(quiet(1.0)[9], has_backlog=True), *quiet(1.0)[10:]),
        (*quiet(1.0)[:9], replace(quiet(1.0)[9], is_known=False), *quiet(1.0)[10:]),
        (*quiet(1.0)[:9], replace(quiet(1.0)[9], need=5.0), *quiet(1.0)[10:]),
        (*quiet(1.0)[:5], *quiet(1.0)[10:]),
    ):
        decision = scale(replace(observed, verdicts=spoilt))
        assert (decision.size, decision.reason) == (6, Reason.LESS_NOT_YET)
    assert scale(replace(observed, least=3)).size == 3
    some = replace(observed, verdicts=(*quiet(1.0)[:9], replace(quiet(1.0)[9], need=2.5), *quiet(1.0)[10:]))
    assert scale(some).size == 3


def test_batches_that_are_too_small_for_more_executors_stay_so():
    of = batches(2.0, 500, [100, 200, 400, 200, 100])
    observed = driver(1, arrivals=1_000, backlog=500_000, of=of, verdicts=(Verdict(MINUTE, 9.0, True, True),))
    assert (scale(observed).size, scale(observed).reason) == (1, Reason.TOO_SMALL)
    assert "batches too small" in scale(observed).words


def test_without_a_backlog_batches_of_one_size_are_no_reason_to_go_out():
    seen = (Verdict(MINUTE, 9.0, False, True),)
    observed = driver(1, arrivals=1_000, of=EQUAL, verdicts=seen)
    assert scale(observed).size == 1
    (load,) = observed.loads
    behind = replace(observed, loads=(replace(load, backlog=500_000),))
    assert scale(behind).reason is Reason.MORE


def test_no_more_executors_than_the_source_has_parts_to_read():
    seen = (Verdict(MINUTE, 9.0, True, True),)
    observed = driver(1, arrivals=5_000, backlog=500_000, parallelism=6, cores=2, verdicts=seen)
    assert (scale(observed).size, scale(observed).reason) == (3, Reason.MORE)
    assert (scale(replace(observed, size=3)).size, scale(replace(observed, size=3)).reason) == (3, Reason.AT_MOST)
    assert scale(replace(observed, most=2)).size == 2
    assert scale(replace(observed, size=2, most=2)).reason is Reason.AT_MOST


def test_the_needs_of_flows_add_up():
    (load,) = driver(arrivals=1_400).loads
    both = replace(driver(), loads=(load, replace(load, flow="silver.events")))
    assert scale(both).verdict.need == pytest.approx(2 * scale(driver(arrivals=1_400)).verdict.need) == pytest.approx(4)


def test_an_unknown_lag_or_a_backlog_without_batches_changes_nothing():
    for observed in (
        driver(4, arrivals=None, verdicts=quiet(0.0)),
        driver(4, backlog=None, verdicts=quiet(0.0)),
        driver(4, backlog=100_000, of=(), verdicts=quiet(0.0)),
    ):
        assert (scale(observed).size, scale(observed).reason) == (4, Reason.UNKNOWN)
    # A flow that has nothing to do needs nobody.
    assert scale(driver(4, of=(), verdicts=quiet(0.0))).size == 1


def test_other_bounds_hold_at_once():
    assert (scale(driver(2, least=4)).size, scale(driver(2, least=4)).reason) == (4, Reason.BOUNDS)
    assert scale(driver(9, most=5)).size == 5


@given(st.lists(st.builds(Batch, st.integers(1, 10**6), st.just(1.0), st.integers(1, 4)), max_size=300))
def test_a_sample_is_small_and_has_the_newest_batches(of: list[Batch]):
    kept = sample(of)
    assert kept[: scaling.NEWEST_IN_SAMPLE] == tuple(of[: scaling.NEWEST_IN_SAMPLE])
    assert len(kept) <= scaling.NEWEST_IN_SAMPLE + 25 * scaling.OF_EACH_ORDER
