"""Which flow moves to another driver: only where a driver has lacked executors for long, and another one has room."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from include.control.flows.rebalance import Move, rebalance
from include.control.flows.scale import (
    MOST_NEED,
    UTILISATION,
    Batch,
    Decision,
    Load,
    Observed,
    Verdict,
    needs,
    scale,
)

MINUTE = 60.0
BATCHES = tuple(Batch(rows, 0.5 + rows / 1_000, 1) for rows in (500, 1_000, 2_000, 4_000, 8_000))


def decision(
    most: int,
    *,
    minutes: int = 16,
    past_need: float | None = None,
    cores: int = 1,
    backlog: int | None = 0,
    **flows: float,
) -> Decision:
    """Of a driver that has all its executors. flows: the need of each, in executors.

    past_need: what each of its last decisions, one a minute, has found; None: the same need.
    """
    loads = tuple(Load(flow, UTILISATION * 1_000 * need, backlog, None, BATCHES) for flow, need in flows.items())
    need = sum(flows.values()) if past_need is None else past_need
    verdicts = tuple(Verdict(MINUTE * ago, need, False, True) for ago in range(1, minutes + 1))
    return scale(Observed(most, 1, most, 600.0, cores, loads, verdicts))


def moved(**decisions: Decision) -> Move | None:
    return rebalance(decisions, {load.flow for made in decisions.values() for load in made.inputs.loads})


def test_the_flow_with_the_least_need_that_suffices_moves_to_the_driver_with_most_room():
    move = moved(
        main=decision(2, orders=1.5, events=1.2, clicks=0.2),
        other=decision(3, users=0.5),
        third=decision(2, shops=0.5),
    )
    assert (move.flow, move.driver, move.to) == ("events", "main", "other")


def test_if_none_suffices_the_flow_with_the_greatest_need_moves_that_finds_room():
    move = moved(main=decision(1, orders=4.0, events=1.2, clicks=0.2), other=decision(3, users=0.5))
    assert move.flow == "events"


def test_nothing_moves_for_a_lack_of_a_moment():
    busy, other = {"orders": 1.5, "events": 1.5}, decision(3, users=0.5)
    assert moved(main=decision(2, **busy), other=other)
    assert moved(main=decision(2, past_need=2.0, **busy), other=other) is None
    assert moved(main=decision(2, minutes=10, **busy), other=other) is None, "it has not run for long enough"


def test_nothing_moves_to_a_driver_without_room():
    main = decision(2, orders=1.5, events=1.5)
    assert moved(main=main) is None
    assert moved(main=main, other=decision(2, users=1.0)) is None
    assert moved(main=main, other=decision(3, past_need=2.5, users=0.5)) is None, "it needed them a moment ago"
    assert moved(main=main, other=decision(3, backlog=None, users=0.5)) is None, "nobody knows what it lacks"
    assert moved(main=main, other=decision(3, backlog=10_000_000, users=0.5)) is None


def test_nothing_moves_to_a_driver_whose_executors_have_other_cores():
    main = decision(2, orders=1.5, events=1.5)
    assert moved(main=main, other=decision(6, cores=4, users=0.5)) is None


def test_a_driver_keeps_its_only_flow():
    assert moved(main=decision(1, orders=2.0), other=decision(3, users=0.5)) is None


def test_a_flow_that_may_not_move_stays():
    decisions = {"main": decision(2, orders=1.6, events=1.2), "other": decision(3, users=0.5)}
    assert rebalance(decisions, {"orders", "events"}).flow == "events"
    assert rebalance(decisions, {"orders"}).flow == "orders"
    assert rebalance(decisions, set()) is None


def test_a_driver_that_can_still_get_executors_keeps_its_flows():
    main = decision(2, orders=1.5, events=1.5)
    assert rebalance({"main": main, "other": decision(3, users=0.5)}, {"orders"})
    more = scale(replace(main.inputs, most=4))
    assert moved(main=more, other=decision(3, users=0.5)) is None


some_needs = st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 6), min_size=1)


@given(st.lists(st.tuples(st.integers(1, 5), some_needs), min_size=2, max_size=4))
def test_a_move_helps_its_driver_and_never_makes_another_one_lack_executors(drivers):
    decisions = {
        f"driver{number}": decision(most, **{f"{flow}{number}": need for flow, need in flows.items()})
        for number, (most, flows) in enumerate(drivers)
    }
    move = moved(**decisions)
    lacking = {name for name, made in decisions.items() if made.verdict.need > MOST_NEED * made.inputs.most}
    if move is None:
        return
    assert move.driver in lacking and move.to not in lacking
    assert move.need == needs(decisions[move.driver].inputs)[move.flow] > 0
    assert decisions[move.to].verdict.need + move.need <= decisions[move.to].inputs.most
    assert len(decisions[move.driver].inputs.loads) > 1
