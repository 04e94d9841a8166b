"""A snapshot as a platform with many flows stores it, for tests and benchmarks of the console."""

from collections.abc import Sequence

from sqlalchemy import Engine

from include.control.store import database
from include.control.store.schema import samples
from include.control.supervision.troubles import Trouble
from include.monitoring import snapshot
from include.monitoring.snapshot import EdgeSnapshot, FlowSnapshot, Snapshot, TableDetails, TableSnapshot

STATES = ["HEALTHY"] * 17 + ["BACKING OFF", "LAGGING", "STOPPED"]


def now(engine: Engine) -> float:
    with database.reading(engine) as connection:
        return database.now(connection)


def flow(name: str, number: int, at: float, **changed: object) -> FlowSnapshot:
    values = {
        "layer": name.partition(".")[0],
        "driver": f"driver{number // 40}",
        "host": f"worker-{number // 40}.example",
        "wanted": "running",
        "state": STATES[number % len(STATES)],
        "reason": "at work" if number % 20 < 17 else f"its driver exited without an error report, {number} times",
        "next_step": "" if number % 20 < 17 else "none, it is started again; sooner by action restart",
        "unit": "records",
        "behind": number * 37 % 900,
        "rows": number * 37 % 900,
        "lag_words": f"{number * 37 % 900} records",
        "lag_seconds": float(number * 7 % 50),
        "freshness_words": "fresh, promised 5 min",
        "rows_in_per_second": 20.0 + number,
        "rows_out_per_second": 19.5 + number,
        "phase": "add batch",
        "phase_at": at - number % 9,
        "restarts": number % 3,
        "starts": 1 + number % 3,
    }
    return FlowSnapshot(name, name, **{**values, **changed})  # type: ignore[arg-type]


def synthetic(flows: int, at: float, troubles: Sequence[Trouble] = ()) -> Snapshot:
    """Bronze tables of topics, a silver table for each, and gold tables that read several of those."""
    layers = [("bronze", "silver", "gold")[number % 3] for number in range(flows)]
    names = [f"{layer}.orders_of_region_{number // 3}" for number, layer in enumerate(layers)]
    edges = [
        EdgeSnapshot(f"kafka topic_{number}", name, "topic", "table", name)
        if number % 3 == 0
        else EdgeSnapshot(names[number - 1], name, flow=name)
        for number, name in enumerate(names)
    ]
    tables = [
        TableSnapshot(
            name, name.partition(".")[0], owner="sales", flows=(name,), is_stored=True, version=7, rows=9, files=3
        )
        for name in names
    ]
    stored_flows = tuple(flow(name, number, at) for number, name in enumerate(names))
    return Snapshot(at, flows=stored_flows, tables=tuple(tables), edges=tuple(edges), troubles=tuple(troubles))


def store(engine: Engine, stored: Snapshot, minutes: int = 0, details: Sequence[TableDetails] = ()) -> None:
    """Stores the snapshot, and so many minutes of history before it."""
    snapshot.store(engine, stored, details)
    rows = [
        {
            "flow": stored_flow.flow,
            "at": stored.at - 60 * minute,
            "state": "HEALTHY",
            "starts": 1 if minute > minutes // 2 else 2,
            "behind": (number * 13 + minute * 29) % 700,
            "lag_seconds": float((number * 7 + minute * 11) % 50),
            "rows_in_per_second": 20.0,
            "rows_out_per_second": 19.0,
            "batch_ms": 900 + minute,
            "add_batch_ms": 700 + minute,
        }
        for number, stored_flow in enumerate(stored.flows)
        for minute in range(1, minutes + 1)
    ]
    if rows:
        with database.transaction(engine) as connection:
            connection.execute(samples.insert(), rows)
