"""When a flow looks for new rows."""

from types import SimpleNamespace

import pytest

from include.engine.stream.trigger_times import FlowTrigger
from include.settings import settings
from include.spec import Delta, Table


@pytest.fixture
def in_store(monkeypatch):
    monkeypatch.setenv("SLUICE_LAKE", "s3a://bucket/lake")
    settings.cache_clear()
    yield
    monkeypatch.undo()
    settings.cache_clear()


def test_a_table_in_a_store_that_no_flow_here_writes_is_looked_at_ever_less_often(in_store):
    table = Table(name="silver.x", comment="x", source=Delta("bronze.x"), schema="a INT", interval_seconds=1)
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
