"""Walks through the shipped examples while they run, in five steps that are true at that moment: `make demo`."""

import os
import signal
import textwrap
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow.compute as pc
from sqlalchemy import Engine

from include import catalog
from include.catalog import Catalog
from include.control.flows import placements
from include.control.leases.process import Process
from include.control.store import database
from include.delta import stored_table
from include.delta.delta_log import DeltaLog
from include.errors import SetupError, UsageError, report
from include.lake import locations
from include.ledger import explain, quarantine, verify
from include.ledger.explain import TraceStep
from include.local import install, object_store
from include.local.airflow import Airflow
from include.local.processes import Platform, StallTimer
from include.local.up import launched, missing_flows
from include.settings import settings
from include.spec import Table

# Fed by records whose offsets its rows keep, by a flow that quarantines some of them.
TABLE = "silver.tracker_readings"
RESTART_SECONDS = 180
# A row takes seconds, and minutes on a machine with other work.
GOLD_SECONDS = 60
COLUMNS, INDENT = 100, "   "
UP = "`make up` starts it, and returns when its tables hold rows"


def main() -> None:
    """Walk through the examples: a row, its way, the quarantine, a driver that is killed, and where to look."""
    object_store.use_declared(settings())
    if not catalog.has_examples():
        raise UsageError("make demo shows the shipped examples, and this project has none: see docs/start/demo.md")
    tables = catalog.load()
    table = tables.table(TABLE)
    platform = Platform(settings().home)
    if not platform.names() or not locations.is_stored(TABLE):
        raise SetupError(f"the platform of {settings().home} does not run: {UP}")
    for number, (text, *commands) in enumerate(_steps(tables, table, platform), 1):
        print(textwrap.fill(f"{number}. {text}", COLUMNS, subsequent_indent=INDENT, break_on_hyphens=False))
        for command in commands:
            print(f"{INDENT}$ {install.command_words()} {command}")
        print(flush=True)


def _steps(tables: Catalog, table: Table, platform: Platform) -> Iterator[tuple[str, ...]]:
    """Yields of each step what it shows, and the commands that show more of it."""
    record = _newest_record(tables, table)
    way = _way_to_gold(tables, record)
    yield (f"A row came through. {_arrival(table, record, way)}",)
    name = f"--topic {record['topic']} --partition {record['partition']} --offset {record['offset']}"
    yield f"Its way: {_way_words(way)}.", f"explain {name}"
    yield f"Bad rows wait with their reason. {_quarantined(table)}", f"quarantine {table.name}"
    yield f"A driver dies, and nothing is lost. {_killed(tables, table)}", f"verify {table.name}"
    url = Airflow(settings(), platform, {}).url
    yield f"Look around: {url} is Airflow.", "status", "graph"


def _newest_record(tables: Catalog, table: Table) -> dict[str, Any]:
    """Returns the record of the greatest offset: topic, partition, offset, `sent_at` in seconds since 1970, and `rows`,
    how many the table has.
    """
    rows = stored_table.dataset(table.name).to_table(columns=["topic", "partition", "offset"])
    if not rows.num_rows:
        raise SetupError(f"{table.name} holds no row yet: {UP}")
    [record] = rows.sort_by([("offset", "descending")]).slice(0, 1).to_pylist()
    source = stored_table.dataset(tables.table(table.upstream[0].table).name)
    is_record = (pc.field("partition") == record["partition"]) & (pc.field("offset") == record["offset"])
    sent_at = source.to_table(columns=["timestamp"], filter=is_record)["timestamp"][0].as_py()
    return {**record, "sent_at": sent_at.timestamp(), "rows": rows.num_rows}


def _way_to_gold(tables: Catalog, record: dict[str, Any]) -> list[TraceStep]:
    """Returns the steps of the record, once a gold table has read it; where none does in time, those until then."""
    ends_at = time.monotonic() + GOLD_SECONDS
    while True:
        way = list(_way(explain.of_record(tables, record["topic"], record["partition"], record["offset"])))
        if any(step.table.startswith("gold.") for step in way) or time.monotonic() > ends_at:
            return way
        time.sleep(0.5)


def _way(traces: list[TraceStep]) -> Iterator[TraceStep]:
    """Yields a step in each table that has rows of the record, upstream first."""
    for trace in traces:
        if trace.versions:
            yield trace
            yield from _way(trace.below)


def _way_words(way: list[TraceStep]) -> str:
    versions = {step.table: f"{step.table} version {step.versions[0]}" for step in way}
    return " -> ".join(versions.values())


def _arrival(table: Table, record: dict[str, Any], way: list[TraceStep]) -> str:
    version = next(step.versions[0] for step in way if step.table == table.name)
    committed_at = DeltaLog(locations.table_path(table.name)).commit(version).timestamp
    sent_at = datetime.fromtimestamp(record["sent_at"], UTC)
    return (
        f"Record {record['offset']} of {record['topic']}/{record['partition']} was sent at {sent_at:%H:%M:%S}Z, and is "
        f"one of {record['rows']:,} rows of {table.name} since {committed_at - record['sent_at']:.1f} s later."
    )


def _quarantined(table: Table) -> str:
    if not locations.is_stored(table.quarantine):
        return f"{table.quarantine} holds none yet."
    sample = quarantine.sample(table, 1)
    if not sample.rows:
        return f"{table.quarantine} holds none yet."
    row = sample.rows[0]
    place = ", ".join(f"{name} {value}" for name, value in row.origin.items())
    rules = ", ".join(f"'{rule}'" for rule in row.rules)
    return f"{sample.total or sample.counted:,} are in {table.quarantine}; the newest ({place}) broke {rules}."


def _killed(tables: Catalog, table: Table) -> str:
    """Kills the driver of the table's flow as a crash would, and waits until its successor has committed."""
    engine = database.connect(settings().control_url)
    name = placements.place(engine, tables).driver_for(table)
    handle = launched(engine).get(name)
    driver = Process.from_json(handle) if handle else None
    if driver is None or not driver.is_alive:
        raise SetupError(f"driver '{name}' does not run: {UP}")
    begun_at, version = time.monotonic(), DeltaLog(locations.table_path(table.name)).newest
    os.kill(driver.pid, signal.SIGKILL)
    print(f"{INDENT}(driver '{name}', process {driver.pid}, was killed; Airflow looks every minute)", flush=True)
    successor = _wait_for_successor(engine, table, name, handle, version)
    seconds = time.monotonic() - begun_at
    [result, *_] = verify.lines(verify.verify(table))
    return (
        f"Process {driver.pid} of driver '{name}' was killed, and {seconds:.0f} s later process "
        f"{successor.pid} had written the next batch. {result}."
    )


def _wait_for_successor(engine: Engine, table: Table, driver: str, handle: str | None, version: int) -> Process:
    log = locations.table_path(table.name)
    platform = Platform(settings().home)
    timer = StallTimer(RESTART_SECONDS, lambda: (launched(engine), platform.logged_bytes(f"driver-{driver}")))
    while True:
        current = launched(engine).get(driver)
        if current and current != handle and not missing_flows(engine) and DeltaLog(log).newest > version:
            return Process.from_json(current)
        if timer.is_over:
            raise SetupError(f"driver '{driver}' did not come back: `sluice status` says why")
        time.sleep(0.5)


if __name__ == "__main__":
    report(main)
