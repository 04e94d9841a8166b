"""Wrong names and types of columns: `include.project.columns` and `ranges`."""

from dataclasses import replace

from tests.mistakes.case import BY_MINUTE, CHANGES, KNOWN, LATEST, READINGS, case

CASES = (
    case(
        "column_is_a_varchar",
        replace(READINGS, schema="key VARCHAR(10)"),
        "silver/readings.py: column 'key' is VARCHAR, which a Delta table cannot store: declare it STRING",
    ),
    case(
        "column_is_an_interval",
        replace(READINGS, schema="key BINARY, since INTERVAL DAY TO SECOND"),
        "silver/readings.py: column 'since' is INTERVAL, which a Delta table cannot store: declare another type",
    ),
    case(
        "column_of_the_change_feed",
        (replace(READINGS, schema="key BINARY, _change_type STRING"), CHANGES),
        "silver/readings.py: column '_change_type' has a name of the change feed, and gold.readings reads the "
        "changes of this table: call it something else",
    ),
    case(
        "column_of_the_quarantine",
        replace(READINGS, schema="key BINARY, _batch BIGINT", expect=(KNOWN,)),
        "silver/readings.py: column '_batch' is one that Sluice adds, to count and quarantine rows: call it "
        "something else",
    ),
    case(
        "column_twice",
        replace(READINGS, schema="key BINARY, offset BIGINT, key STRING"),
        "silver/readings.py: column 'key' stands in its schema twice: take one out",
    ),
    case(
        "column_twice_but_for_capitals",
        replace(READINGS, schema="key BINARY, Offset BIGINT, offset BIGINT"),
        "silver/readings.py: columns 'Offset' and 'offset' differ in capital letters alone, and Spark takes them "
        "for one: rename one of them",
    ),
    case(
        "column_with_a_dash",
        replace(READINGS, schema="key BINARY, the-offset BIGINT"),
        "silver/readings.py: column 'the-offset' has a character that SQL takes in backquotes only: write `the-offset`",
    ),
    case(
        "column_with_a_space",
        replace(READINGS, schema="key BINARY, `the offset` BIGINT"),
        "silver/readings.py: column 'the offset' has a character that Delta or SQL refuses: use letters, digits and _",
    ),
    case(
        "column_without_a_type",
        replace(READINGS, schema="key, offset BIGINT"),
        "silver/readings.py: column 'key' has no type: write one behind it, such as `key STRING`",
    ),
    case(
        "empty_schema",
        replace(READINGS, schema=""),
        "silver/readings.py: schema is empty: name its columns",
    ),
    case(
        "schema_ends_with_a_comma",
        replace(READINGS, schema="key BINARY, offset BIGINT,"),
        "silver/readings.py: schema has a comma too many after 'offset': take it out",
    ),
    case(
        "schema_lacks_a_comma",
        replace(READINGS, schema="key BINARY COMMENT 'the sender' offset BIGINT, timestamp TIMESTAMP"),
        "silver/readings.py: schema lacks a comma between 'key' and 'offset': write one",
    ),
    case(
        "time_column_is_no_column",
        replace(READINGS, schema="key BINARY, time TIMESTAMP", time_column="tiem"),
        "silver/readings.py: time_column is 'tiem', no column of its schema: did you mean 'time'?",
    ),
    case(
        "time_column_is_no_time",
        replace(READINGS, time_column="offset"),
        "silver/readings.py: time_column 'offset' is BIGINT: name a column that is TIMESTAMP or DATE",
    ),
    case(
        "time_column_on_a_view",
        replace(LATEST, time_column="timestamp"),
        "gold/latest.py: time_column is for tables of appends, and a view is refreshed, not backfilled: take it out",
    ),
    case(
        "time_column_on_an_upsert",
        replace(BY_MINUTE, time_column="minute"),
        "gold/by_minute.py: time_column is for tables of appends, and an Upsert is backfilled by its bucket, or "
        "as a whole without one: take it out",
    ),
)
