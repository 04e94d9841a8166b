"""Wrong materialized views, and streams that read a view."""

from dataclasses import replace

from include.rules import unique
from include.spec import Delta, Expect, Json, Kafka, PythonLimits, Upsert
from tests.mistakes.case import BY_MINUTE, CHANGES, LATEST, READINGS, case

VIEW_OF_TWO_SOURCES = replace(LATEST, source={"events": Delta("bronze.events"), "again": Delta("bronze.events")})

CASES = (
    case(
        "aggregate_of_a_view",
        (
            replace(CHANGES, source=Delta("silver.latest", changes=True), write=Upsert(keys=("key",))),
            replace(LATEST, name="silver.latest"),
        ),
        "gold/readings.py: source 'silver.latest' is a materialized view, and a stream would stop at its next "
        "refresh, which replaces all rows: read what the view reads, or make this table a view, write=Replace()",
    ),
    case(
        "reset_allowed_on_a_view",
        replace(LATEST, reset_allowed=True),
        "gold/latest.py: reset_allowed is of no use to a materialized view: it has no flow that could "
        "restart, so take it out",
    ),
    case(
        "view_that_follows_an_unknown_table",
        replace(LATEST, schedule=("bronze.event",)),
        "gold/latest.py: schedule names 'bronze.event', which is no other stored table: did you mean 'bronze.events'?",
    ),
    case(
        "view_as_a_stream",
        (replace(CHANGES, source=Delta("silver.latest")), replace(LATEST, name="silver.latest")),
        "gold/readings.py: source 'silver.latest' is a materialized view, and a stream would stop at its next "
        "refresh, which replaces all rows: read what the view reads, or make this table a view, write=Replace()",
    ),
    case(
        "view_of_an_unknown_table",
        replace(LATEST, source=Delta("bronze.event")),
        "gold/latest.py: source is 'bronze.event', which no file declares: did you mean 'bronze.events'?",
    ),
    case(
        "view_of_changes",
        replace(LATEST, source=Delta("bronze.events", changes=True)),
        "gold/latest.py: source 'bronze.events' says changes, and a view reads all rows of one version: write "
        "Delta('bronze.events') alone",
    ),
    case(
        "view_of_two_versions_at_once",
        replace(LATEST, source=Delta("bronze.events", version_as_of=1, timestamp_as_of="2026-03-01T00:00:00Z")),
        "gold/latest.py: source 'bronze.events' says version_as_of and timestamp_as_of, which both name a version: "
        "keep one",
    ),
    case(
        "view_of_a_moment_without_a_time_zone",
        replace(LATEST, source=Delta("bronze.events", timestamp_as_of="2026-03-01")),
        "gold/latest.py: timestamp_as_of is '2026-03-01', no moment with its time zone: write one such as "
        "'2026-03-01T00:00:00Z'",
    ),
    case(
        "view_of_a_negative_version",
        replace(LATEST, source=Delta("bronze.events", version_as_of=-1)),
        "gold/latest.py: Delta's version_as_of is -1: set it to a version of its source, 0 or more",
    ),
    case(
        "stream_of_one_version",
        replace(READINGS, source=Delta("bronze.events", version_as_of=1)),
        "silver/readings.py: source 'bronze.events' says version_as_of, and a flow goes on with each new version: "
        "begin there with since_version, or make the table a view, write=Replace()",
    ),
    case(
        "stream_of_one_moment",
        replace(READINGS, source=Delta("bronze.events", timestamp_as_of="2026-03-01T00:00:00Z")),
        "silver/readings.py: source 'bronze.events' says timestamp_as_of, and a flow goes on with each new version: "
        "begin there with since, or make the table a view, write=Replace()",
    ),
    case(
        "aggregate_of_one_version",
        replace(BY_MINUTE, source=Delta("bronze.events", version_as_of=1)),
        "gold/by_minute.py: source 'bronze.events' says version_as_of, and a flow goes on with each new version: "
        "make the table a view, write=Replace()",
    ),
    case(
        "view_of_kafka",
        replace(LATEST, source=Kafka("events")),
        "gold/latest.py: Replace reads Kafka, and a view is recomputed from stored tables: read the bronze "
        "table that keeps it",
    ),
    case(
        "view_of_nothing",
        replace(LATEST, source={}, transform="SELECT 1"),
        "gold/latest.py: source is empty: name the tables that the view reads",
    ),
    case(
        "view_of_some_files",
        replace(LATEST, source=Delta("bronze.events", max_files=10)),
        "gold/latest.py: source 'bronze.events' says max_files, and a view reads all rows of one version: write "
        "Delta('bronze.events') alone",
    ),
    case(
        "view_quarantines",
        replace(LATEST, expect=(Expect("keyed", "key IS NOT NULL"),)),
        "gold/latest.py: rule 'keyed' quarantines, and no row could be moved into a view, which is "
        "recomputed: write otherwise='drop', 'warn' or 'fail', or put the rule on the table it reads",
    ),
    case(
        "view_since",
        replace(LATEST, source=Delta("bronze.events", since="2026-03-01T00:00:00Z")),
        "gold/latest.py: source 'bronze.events' says since, and a view reads all rows of one version: write "
        "Delta('bronze.events') alone",
    ),
    case(
        "view_that_is_a_step",
        replace(LATEST, temporary=True),
        "gold/latest.py: temporary is of no use to a materialized view: a view is there to be stored, so keep "
        "one of write=Replace() and temporary=True",
    ),
    case(
        "view_that_runs_python",
        replace(LATEST, transform=lambda rows: rows, python=PythonLimits()),
        "gold/latest.py: python is of no use to a materialized view: a view runs Spark's own functions alone, so let a "
        "table that it reads store what the function returns",
    ),
    case(
        "view_with_a_driver",
        replace(LATEST, driver="side"),
        "gold/latest.py: driver is of no use to a materialized view: it is refreshed by a job of its own, so "
        "take it out",
    ),
    case(
        "view_with_a_name_of_two_words",
        replace(LATEST, source={"all events": Delta("bronze.events")}, transform="SELECT * FROM events"),
        "gold/latest.py: source has the name 'all events', no plain word: use small letters, digits and _",
    ),
    case(
        "view_with_a_parse",
        replace(
            LATEST,
            schema="key BINARY, offset BIGINT, _errors ARRAY<STRUCT<field: STRING, message: STRING>>",
            parse=Json("value", into=("key",)),
        ),
        "gold/latest.py: parse is of no use to a materialized view: what arrives is typed where it is kept, so "
        "read a silver table",
    ),
    case(
        "view_with_an_interval",
        replace(LATEST, interval_seconds=60),
        "gold/latest.py: interval_seconds is of no use to a materialized view: it is refreshed by its schedule, "
        "so write schedule='0 3 * * *'",
    ),
    case(
        "view_with_another_argument",
        replace(VIEW_OF_TWO_SOURCES, transform=lambda events, others: events),
        "gold/latest.py: its transform does not take its sources by name (missing a required argument: "
        "'others'): write `def transform(events, again)`",
    ),
    case(
        "view_with_unique",
        replace(LATEST, expect=(unique("key", otherwise="drop"),)),
        "gold/latest.py: rule 'key unique' looks into stored rows, which a view replaces: do that in its transform",
    ),
    case(
        "view_without_a_transform",
        VIEW_OF_TWO_SOURCES,
        "gold/latest.py: Replace has several sources and no transform: write one, `def transform(events, again)`",
    ),
)
