"""When a flow looks for new rows."""

from types import SimpleNamespace

import pytest

from include.engine.stream import pacer
from include.engine.stream.pacer import FlowTrigger, Pacer
from include.settings import settings
from include.spec import Delta, Flow, Kafka


@pytest.fixture
def in_store(monkeypatch):
    monkeypatch.setenv("SLUICE_LAKE", "s3a://bucket/lake")
    settings.cache_clear()
    yield
    monkeypatch.undo()
    settings.cache_clear()


def test_a_table_in_a_store_that_no_flow_here_writes_is_looked_at_ever_less_often(in_store):
    table = Flow(name="silver.x", comment="x", source=Delta("bronze.x"), schema="a INT", interval_seconds=1)
    trigger = FlowTrigger(table, 1.0, query=SimpleNamespace(), clock=SimpleNamespace(fire=lambda: None))

    def pauses(count: int) -> list[float]:
        found = []
        for _ in range(count):
            trigger.fire()
            assert trigger.is_due()
            found.append(trigger.due_at() - trigger.fired_at)
        return found

    assert pauses(5) == pytest.approx([1, 2, 4, 4, 4])
    trigger.begin()
    trigger.commit()
    assert pauses(2) == pytest.approx([1, 2])


def test_after_long_batches_side_by_side_a_driver_rests_no_longer_than_its_share_asks(monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(pacer, "time", SimpleNamespace(monotonic=lambda: clock.now))
    names, flow_pacer = [f"bronze.{letter}" for letter in "abcdef"], Pacer(None)
    for name in names:
        trigger = FlowTrigger(Flow(name=name, comment="x", source=Kafka("x")), 2.0, query=SimpleNamespace())
        trigger.clock = SimpleNamespace(fire=lambda: None)
        flow_pacer._triggers[name] = trigger

    def due_in_seconds() -> list[float]:
        return [trigger.due_at(flow_pacer._rested_at) - clock.now for trigger in flow_pacer._triggers.values()]

    for trigger in flow_pacer._triggers.values():
        trigger.fire()
    for name in names:
        flow_pacer.begin(name)
    clock.now += 120
    for name in names[1:]:
        flow_pacer.commit(name)
    assert min(due_in_seconds()) > 300, "the others have taken long, and a batch still runs"
    flow_pacer.commit(names[0])
    assert due_in_seconds() == pytest.approx([120 * (1 / pacer.BUSY_SHARE - 1)] * 6)
    clock.now += 81
    assert len(flow_pacer._due()) == 6
    flow_pacer.begin(names[0])
    assert min(due_in_seconds()[1:]) > 200, "the driver is at work again"


def test_load_keeps_batches_apart_and_not_looks_that_find_no_rows(monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(pacer, "time", SimpleNamespace(monotonic=lambda: clock.now))
    trigger = FlowTrigger(Flow(name="bronze.x", comment="x", source=Kafka("x")), 2.0, query=SimpleNamespace())
    trigger.clock = SimpleNamespace(fire=lambda: None)
    flow_pacer = Pacer(None)
    flow_pacer._triggers = {"bronze.x": trigger}

    def fire(after_seconds: float) -> None:
        clock.now += after_seconds
        flow_pacer._fire(trigger)

    fire(0)
    trigger.begin()
    clock.now += 40
    trigger.commit()
    flow_pacer._set_intervals()
    interval_seconds = trigger.interval_seconds
    assert interval_seconds > 10, "its batches take long"
    assert trigger.due_at() == trigger.fired_at + interval_seconds
    fire(interval_seconds)
    assert trigger.due_at() - trigger.fired_at <= pacer.IDLE_SECONDS
    for _ in range(20):
        fire(4)
    assert trigger.interval_seconds == 2.0, "the driver is idle"
