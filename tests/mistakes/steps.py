"""Wrong temporary steps, which are not stored, and wrong readers of such steps."""

from dataclasses import replace

from include.spec import Bucket, Delta, PythonLimits, Upsert
from tests.mistakes.case import BY_MINUTE, CHANGES, EVENTS, KNOWN, LATEST, READINGS, case

STEP = replace(READINGS, temporary=True)

CASES = (
    case(
        "step_that_runs_python",
        replace(STEP, transform=lambda rows: rows, python=PythonLimits()),
        "silver/readings.py: python is set, and a temporary step runs Spark's own functions alone: let a stored table "
        "that appends rows run the Python function, and read that",
    ),
    case(
        "aggregate_that_runs_python",
        replace(BY_MINUTE, transform=lambda rows: rows, python=PythonLimits()),
        "gold/by_minute.py: python is set, and an aggregate runs Spark's own functions alone: let a stored table that "
        "appends rows run the Python function, and read that",
    ),
    case(
        "sql_that_runs_python",
        replace(READINGS, transform="SELECT * FROM source", python=PythonLimits()),
        "silver/readings.py: python is set, and its transform is no function that could run Python: write one, or "
        "take it out",
    ),
    case(
        "aggregate_of_a_step_over_changes",
        (
            replace(
                BY_MINUTE,
                name="gold.by_hour",
                source=Delta("silver.changed"),
                schema="key BINARY, hour TIMESTAMP",
                write=Upsert(keys=("key", "hour"), recompute=Bucket("hour", of="minute", unit="hour")),
            ),
            replace(
                STEP,
                name="silver.changed",
                source=Delta("silver.by_minute", changes=True),
                schema="key BINARY, minute TIMESTAMP",
            ),
            replace(BY_MINUTE, name="silver.by_minute"),
        ),
        "gold/by_hour.py: source 'silver.changed' is a temporary step over changes, and an aggregate is "
        "recomputed from rows: read the changes without a step between",
    ),
    case(
        "changes_of_a_temporary_step",
        (CHANGES, STEP),
        "gold/readings.py: source 'silver.readings' is a temporary step, and how its rows are read stands there: "
        "write Delta('silver.readings') alone",
    ),
    case(
        "reset_allowed_on_a_temporary_step",
        replace(STEP, reset_allowed=False),
        "silver/readings.py: reset_allowed is of no use to a temporary step, which is not stored: put it on the "
        "tables that read it",
    ),
    case(
        "rules_on_a_temporary_step",
        replace(STEP, expect=(KNOWN,)),
        "silver/readings.py: expect is of no use to a temporary step, which is not stored: put it on the tables "
        "that read it",
    ),
    case(
        "temporary_step_reads_kafka",
        replace(EVENTS, temporary=True),
        "bronze/events.py: a temporary step keeps nothing, and what arrives has to be kept: let it read a table",
    ),
    case(
        "temporary_step_upserts",
        replace(BY_MINUTE, name="silver.readings", temporary=True),
        "silver/readings.py: write is of no use to a temporary step, which is not stored: put it on the tables "
        "that read it",
    ),
    case(
        "temporary_steps_in_a_cycle",
        (
            replace(STEP, name="silver.egg", source=Delta("silver.hen")),
            replace(STEP, name="silver.hen", source=Delta("silver.egg")),
        ),
        "silver/egg.py: reads itself in a cycle (silver.egg <- silver.hen <- silver.egg): cut one of these",
    ),
    case(
        "view_of_a_step",
        (replace(LATEST, source=Delta("silver.readings")), STEP),
        "gold/latest.py: source 'silver.readings' is a temporary step, and a view reads what is stored: store "
        "it, or do the same in the transform of the view",
    ),
)
