"""The cost of each flow on one day: the CPU time of its driver, and the bytes that it wrote."""

from datetime import UTC, datetime
from typing import Any

from include.console.pages import Query
from include.console.readings import Readings
from include.monitoring.snapshot import Used
from include.retention import SAMPLE_DAYS

DAY_SECONDS = 86_400
NOTHING = Used(None, None, 0)


def cost(readings: Readings, query: Query) -> dict[str, Any]:
    """Raises Unreachable."""
    look = readings.look()
    today = int((look.at or 0) // DAY_SECONDS)
    numbers = range(today, today - SAMPLE_DAYS, -1) if look.at else ()
    days = {f"{datetime.fromtimestamp(number * DAY_SECONDS, UTC):%Y-%m-%d}": number for number in numbers}
    chosen = query.get("day", "") if query.get("day") in days else next(iter(days), "")
    begin = days.get(chosen, 0) * DAY_SECONDS
    flows = [flow for flow in look.snapshot.flows if not flow.is_view]
    found = readings.used([flow.flow for flow in flows], begin, begin + DAY_SECONDS)
    rows = sorted(((flow, found.get(flow.flow, NOTHING)) for flow in flows), key=lambda row: -(row[1].cpu_ms or 0))
    return {
        **look.times,
        "here": "cost",
        "days": days,
        "day": chosen,
        "rows": rows,
        "cpu_ms": sum(used.cpu_ms or 0 for used in found.values()),
        "bytes_written": sum(used.bytes_written or 0 for used in found.values()),
    }
