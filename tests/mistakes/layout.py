"""Wrong storage options of a table: owner, clustering, partitioning, properties and driver."""

from dataclasses import replace

from tests.mistakes.case import CHANGES, READINGS, case

CASES = (
    case(
        "change_feed_switched_off",
        (replace(READINGS, properties={"delta.enableChangeDataFeed": "false"}), CHANGES),
        "silver/readings.py: properties switch delta.enableChangeDataFeed off, and gold.readings reads the "
        "changes of this table: take that out",
    ),
    case(
        "cluster_by_is_no_column",
        replace(READINGS, cluster_by=("ofset",)),
        "silver/readings.py: cluster_by names 'ofset', no column of its schema: did you mean 'offset'?",
    ),
    case(
        "cluster_by_names_a_column_twice",
        replace(READINGS, cluster_by=("offset", "offset")),
        "silver/readings.py: cluster_by names 'offset' twice: take one out",
    ),
    case(
        "clustered_and_partitioned",
        replace(READINGS, cluster_by=("offset",), partition_by=("offset",)),
        "silver/readings.py: cluster_by and partition_by both lay out its files: keep one, mostly cluster_by",
    ),
    case(
        "clustered_by_bytes",
        replace(READINGS, cluster_by=("key",)),
        "silver/readings.py: cluster_by names 'key', and Delta takes no BINARY there: name another column",
    ),
    case(
        "clustered_by_five_columns",
        replace(READINGS, schema="a INT, b INT, c INT, d INT, e INT, f INT", cluster_by=("a", "b", "c", "d", "e")),
        "silver/readings.py: cluster_by names 5 columns, and Delta takes 4 at most: keep those that readers filter by",
    ),
    case(
        "subject_is_no_column",
        replace(READINGS, subject="ofset"),
        "silver/readings.py: subject is 'ofset', no column of its schema: did you mean 'offset'?",
    ),
    case(
        "driver_with_a_space",
        replace(READINGS, driver="my driver"),
        "silver/readings.py: driver is 'my driver', which becomes the name of a file, a lease and a process: use "
        "letters, digits, . _ and -",
    ),
    case(
        "owner_is_empty",
        replace(READINGS, owner=""),
        "silver/readings.py: owner is '': write the name of a team or a person",
    ),
    case(
        "partition_by_is_no_column",
        replace(READINGS, schema="key BINARY, offset BIGINT", partition_by=("day",)),
        "silver/readings.py: partition_by names 'day', no column of its schema: there are key, offset",
    ),
    case(
        "partitioned_by_a_struct",
        replace(READINGS, schema="place STRUCT<x: INT>, offset BIGINT", partition_by=("place",)),
        "silver/readings.py: partition_by names 'place', and Delta takes no STRUCT there: name another column",
    ),
    case(
        "partitioned_by_every_column",
        replace(READINGS, schema="key BINARY, offset BIGINT", partition_by=("key", "offset")),
        "silver/readings.py: partition_by names every column, and none is left for the files: take one out",
    ),
    case(
        "retention_as_a_property",
        replace(READINGS, properties={"delta.deletedFileRetentionDuration": "interval 1 hour"}),
        "silver/readings.py: properties set 'delta.deletedFileRetentionDuration': the vacuum guard sets it, by "
        "what streams still need: say maintain=Maintenance(time_travel_hours=...) instead",
    ),
    case(
        "several_mistakes_in_one_file",
        replace(READINGS, driver="my driver", schedule="nightly", cluster_by=("ofset",), time_column="offset"),
        "silver/readings.py: driver is 'my driver', which becomes the name of a file, a lease and a process: use "
        "letters, digits, . _ and -",
        "silver/readings.py: schedule is 'nightly', which is not the five fields of cron: write '0 3 * * *'",
        "silver/readings.py: cluster_by names 'ofset', no column of its schema: did you mean 'offset'?",
        "silver/readings.py: time_column 'offset' is BIGINT: name a column that is TIMESTAMP or DATE",
    ),
    case(
        "transform_is_empty",
        replace(READINGS, transform=" "),
        "silver/readings.py: transform is ' ': it has to be a function or SQL text",
    ),
)
