"""What each flow has used since the snapshot before: a share of its driver's CPU time, and the bytes it wrote.

Flows of one driver share its processes. Their CPU time is divided by the time that their newest batches took.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from include.checkpoints import checkpoint_files
from include.control.leases import lease
from include.control.leases.process import Holder
from include.errors import SluiceError
from include.lake import locations
from include.monitoring.flow_snapshots import WHOLE_BATCH, Observed, Report
from include.monitoring.snapshot import DriverUsage, FlowSnapshot, Snapshot, TableDetails

# As many characters tell two definitions of a flow apart.
DEFINITION_CHARACTERS = 12


def with_usage(
    flows: Sequence[FlowSnapshot],
    drivers: Collection[DriverUsage],
    before: Snapshot | None,
    reports: Mapping[str, Sequence[Report]],
    details: Iterable[TableDetails],
) -> tuple[FlowSnapshot, ...]:
    """Returns the flows with what they have used. drivers: as of now. details: of the tables that have changed."""
    known = {} if before is None else {driver.driver: driver for driver in before.platform.drivers}
    used = {driver.driver: _used(driver, known.get(driver.driver)) for driver in drivers}
    shares = _shares(flows, reports)
    written = _written(details, {table.table: table.version for table in before.tables} if before else {})
    return tuple(
        replace(
            flow,
            cpu_ms=_milliseconds(used.get(flow.driver), shares.get(flow.flow, 0.0)),
            bytes_written=written.get(flow.flow, 0) if before else None,
        )
        for flow in flows
    )


def of_drivers(observed: Observed, drivers: Iterable[str]) -> tuple[DriverUsage, ...]:
    """Returns the CPU time of the drivers whose processes are on this machine."""
    held = [(driver, observed.leases.get(lease.driver_lease(driver))) for driver in drivers]
    seconds = [(driver, row.epoch, Holder.from_json(row.holder).cpu_seconds) for driver, row in held if row]
    return tuple(DriverUsage(driver, epoch, used) for driver, epoch, used in seconds if used is not None)


def _used(now: DriverUsage, before: DriverUsage | None) -> float | None:
    """Returns None where nobody has seen the driver before: what it used may be of any time."""
    if before is None:
        return None
    return now.cpu_seconds - before.cpu_seconds if now.epoch == before.epoch else now.cpu_seconds


def _shares(flows: Sequence[FlowSnapshot], reports: Mapping[str, Sequence[Report]]) -> dict[str, float]:
    """Returns by flow its part of its driver's CPU time; equal parts where no flow of the driver had a batch."""
    of_driver: dict[str, dict[str, float]] = defaultdict(dict)
    for flow in flows:
        of_driver[flow.driver][flow.flow] = sum(report[WHOLE_BATCH] or 0 for report in reports.get(flow.flow, ()))
    return {
        flow: milliseconds / sum(batches.values()) if any(batches.values()) else 1 / len(batches)
        for batches in of_driver.values()
        for flow, milliseconds in batches.items()
    }


def _milliseconds(driver_seconds: float | None, share: float) -> int | None:
    return None if driver_seconds is None else round(1000 * driver_seconds * share)


def _written(details: Iterable[TableDetails], versions: Mapping[str, int | None]) -> dict[str, int]:
    """Returns by flow the bytes of its commits. versions: by table, the newest one before; None: it had none."""
    written: dict[str, int] = defaultdict(int)
    for table in details:
        last = versions.get(table.table, table.versions[0]["version"] if table.versions else None)
        for version in table.versions:
            if version["flow"] and (last is None or version["version"] > last):
                written[str(version["flow"])] += version["bytes"] or 0
    return written


def with_definitions(flows: Sequence[FlowSnapshot], before: Snapshot | None) -> tuple[FlowSnapshot, ...]:
    """Returns the flows with the definitions that they run by. A flow reads a new one only as it starts."""
    known = {} if before is None else {flow.flow: flow for flow in before.flows}
    return tuple(replace(flow, definition=_definition(flow, known.get(flow.flow))) for flow in flows)


def _definition(flow: FlowSnapshot, before: FlowSnapshot | None) -> str | None:
    if before and before.definition and before.starts == flow.starts:
        return before.definition
    if flow.is_view or not flow.starts:
        return before.definition if before else None
    checkpoints = locations.checkpoints(flow.flow)
    try:
        newest: list[dict[str, Any]] = checkpoint_files.owner(
            checkpoints / str(checkpoint_files.newest_generation(checkpoints))
        ).get("definitions", [])
    except (SluiceError, OSError):
        return None
    return str(newest[-1]["sha256"])[:DEFINITION_CHARACTERS] if newest else None
