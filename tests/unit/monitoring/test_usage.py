"""What flows have used: shares of the CPU time of their driver, bytes of their commits, and their definitions."""

import os

import pytest

from include.control.leases.process import Process
from include.monitoring import usage
from include.monitoring.snapshot import DriverUsage, FlowSnapshot, PlatformSnapshot, Snapshot, TableDetails
from include.monitoring.snapshot import TableSnapshot as Stored

A, B = FlowSnapshot("silver.a", "silver.a", driver="main"), FlowSnapshot("silver.b", "silver.b", driver="main")
REPORTS = {"silver.a": [{"trigger_execution_ms": 200}, {"trigger_execution_ms": 100}]}
REPORTS |= {"silver.b": [{"trigger_execution_ms": 100}]}


def before(*drivers: DriverUsage, version: int | None = 3) -> Snapshot:
    return Snapshot(1.0, PlatformSnapshot(drivers=drivers), (A, B), (Stored("silver.a", version=version),))


def cpu_ms(now: DriverUsage, earlier: Snapshot | None, reports: dict | None = None) -> list[int | None]:
    return [flow.cpu_ms for flow in usage.with_usage((A, B), [now], earlier, reports or {}, ())]


def test_flows_share_the_cpu_time_of_their_driver_by_the_time_of_their_batches():
    assert cpu_ms(DriverUsage("main", 1, 14.0), before(DriverUsage("main", 1, 10.0)), REPORTS) == [3000, 1000]


def test_flows_without_a_batch_share_what_their_driver_needs_alike():
    assert cpu_ms(DriverUsage("main", 1, 14.0), before(DriverUsage("main", 1, 10.0))) == [2000, 2000]


def test_a_driver_that_was_started_again_has_used_what_it_shows():
    assert cpu_ms(DriverUsage("main", 2, 4.0), before(DriverUsage("main", 1, 10.0)), REPORTS) == [3000, 1000]


@pytest.mark.parametrize("earlier", [None, before()])
def test_what_a_driver_used_before_anybody_looked_is_unknown(earlier: Snapshot | None):
    assert cpu_ms(DriverUsage("main", 1, 14.0), earlier, REPORTS) == [None, None]


def version(number: int, flow: str | None = "silver.a") -> dict:
    return {"version": number, "flow": flow, "bytes": 100 * number}


@pytest.mark.parametrize(("known", "written"), [(3, 900), (5, 0), (None, 1200)])
def test_bytes_are_those_of_the_flows_own_commits_since_the_version_of_before(known: int | None, written: int):
    details = TableDetails("silver.a", versions=tuple(version(number) for number in (5, 4, 3)))
    other = TableDetails("silver.b", versions=(version(9, None),))
    a, b = usage.with_usage((A, B), [], before(version=known), {}, [details, other])
    assert (a.bytes_written, b.bytes_written) == (written, 0)


def test_a_process_tells_its_cpu_time_while_it_lives_here():
    me = Process.of(os.getpid())
    assert me.cpu_seconds and me.cpu_seconds > 0
    assert Process(me.pid, me.started_at, "another boot").cpu_seconds is None
