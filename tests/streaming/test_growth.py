"""A driver that starts flows and writes batches for weeks holds no more than on its first day.

At full length: `SLUICE_FAULTS=full pytest -s tests/streaming/test_growth.py` (`make soak`).
"""

import os

import pytest

from include.control import orders
from include.control.lease_renewer import LeaseRenewer
from include.control.process import Holder
from include.control.store import database
from include.engine.stream.driver import jvm_pid
from include.engine.stream.host import Host
from include.errors import FlowFailed
from include.settings import settings
from include.spec import Delta, Expect, Table, Upsert
from tests.support import footprint
from tests.support.flows import FULL
from tests.support.waiting import wait_until

# Each is a flow that drains, one that fails and one that is stopped.
ROUNDS = 100 if FULL else 2
BATCHES, SAMPLES, CHANGES = 10_000, 20, 200
SCHEMA = "id INT, v INT, gone BOOLEAN"


@pytest.fixture
def host(spark):
    """A driver by hand, whose flows a test starts and ends."""
    engine = database.connect(settings().control_url)
    renewer = LeaseRenewer(engine, Holder.here("test", jvm_pid()), 60, lambda reason: os.abort())
    renewer.start()
    driver = Host(spark, engine, renewer, "test")
    driver.renewer = renewer
    yield driver
    driver.end()
    renewer.stop()


def merged(name: str, **values: object) -> Table:
    return Table(
        name=f"silver.{name}",
        comment="latest rows",
        source=Delta(f"bronze.{name}"),
        schema="id INT, v INT",
        write=Upsert(("id",), sequence_by="v", deletes="gone"),
        **values,
    )


def test_a_flow_that_has_ended_leaves_nothing_in_either_process(spark, host, name, append):
    table = merged(name)
    failing = merged(name, expect=(Expect("never", "v < 0", otherwise="fail"),))
    stop_order = orders.read(host._engine, "test", [table.flow]).of[table.flow]
    values = iter(range(1_000_000))

    def start_each() -> None:
        append(f"bronze.{name}", [{"id": key, "v": next(values), "gone": False} for key in range(50)], SCHEMA)
        host.renewer.take([table.flow])
        with pytest.raises(FlowFailed):
            host.run_once([failing])
        host.renewer.take([table.flow])
        host.run_once([table])
        host.renewer.take([table.flow])
        append(f"bronze.{name}", [{"id": key, "v": next(values), "gone": True} for key in range(50)], SCHEMA)
        assert host._start(table.flow, stop_order, once=False, table=table) is None
        running = host._flows[table.flow]
        wait_until(lambda: running.batch is not None and not running.query.status["isTriggerActive"], 60)
        running.end()
        wait_until(lambda: not running.is_alive, 60)
        host._close(table.flow)

    start_each()
    first = footprint.measure(spark)
    for number in range(1, ROUNDS):
        start_each()
        if number % 10 == 0:
            print(f"after {3 * (number + 1)} starts: {footprint.measure(spark)}", flush=True)
    last = footprint.settled(spark, first)
    assert last.owned == first.owned
    assert last.flows == last.proxies == 0
    assert last.gateway_objects <= first.gateway_objects + 5
    assert last.jvm_files <= first.jvm_files + 5
    if FULL:
        assert last.heap_mb < first.heap_mb + 20
        assert last.python_objects < first.python_objects * 1.02
