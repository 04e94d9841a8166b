"""Wrong schedules of flows and of maintenance."""

from dataclasses import replace

from include.spec import Maintenance, Upsert
from tests.mistakes.case import READINGS, case

CASES = (
    case(
        "flow_at_no_time",
        replace(READINGS, schedule="nightly"),
        "silver/readings.py: schedule is 'nightly', which is not the five fields of cron: write '0 3 * * *'",
    ),
    case(
        "flow_at_times_and_in_windows",
        replace(READINGS, write=Upsert(keys=("key",), in_windows=True), schedule="0 3 * * *"),
        "silver/readings.py: schedule is '0 3 * * *', and what its source gathers is merged in windows, which "
        "have their own: write maintain=Maintenance(schedule='0 3 * * *')",
    ),
    case(
        "flow_at_times_and_intervals",
        replace(READINGS, schedule="0 3 * * *", interval_seconds=60),
        "silver/readings.py: schedule and interval_seconds both say when it reads: keep one",
    ),
    case(
        "flow_that_follows_tables",
        replace(READINGS, schedule=("bronze.events",)),
        "silver/readings.py: schedule is ('bronze.events',), and only a view is refreshed by tables: a flow reads new "
        "rows as they come, so leave schedule out, or write a cron expression",
    ),
    case(
        "schedule_is_no_cron",
        replace(READINGS, maintain=Maintenance(schedule="nightly")),
        "silver/readings.py: schedule is 'nightly', which is not the five fields of cron: write '0 3 * * *'",
    ),
    case(
        "schedule_is_out_of_range",
        replace(READINGS, maintain=Maintenance(schedule="99 * * * *")),
        "silver/readings.py: schedule is '99 * * * *', which is not the five fields of cron: write '0 3 * * *'",
    ),
    case(
        "schedule_runs_backwards",
        replace(READINGS, schedule="0 9-3 * * *"),
        "silver/readings.py: schedule is '0 9-3 * * *', which is not the five fields of cron: write '0 3 * * *'",
    ),
)
