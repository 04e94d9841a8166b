"""Values of a wrong type, or out of range: `include.project.values`."""

from dataclasses import replace

from include.spec import Append, Delta, Expect, Files, Kafka, Maintenance, PythonLimits, Watermark
from tests.mistakes.case import BILLS, EVENTS, KNOWN, READINGS, case

CASES = (
    case(
        "branch_is_a_name",
        replace(EVENTS, source={"eu": Kafka("events"), "us": "events-us"}),
        "bronze/events.py: source['us'] is 'events-us': it has to be Kafka or Files or Delta",
    ),
    case(
        "changes_is_text",
        replace(READINGS, source=Delta("bronze.events", changes="yes")),
        "silver/readings.py: Delta's changes is 'yes': it has to be True or False",
    ),
    case(
        "cluster_by_as_one_string",
        replace(READINGS, cluster_by=("offset")),
        "silver/readings.py: cluster_by is 'offset' and no tuple: write cluster_by=(...,) with the comma",
    ),
    case(
        "files_none_a_batch",
        replace(BILLS, source=Files("bills", format="csv", max_files=0)),
        "bronze/bills.py: Files's max_files is 0: set it to a whole number above 0",
    ),
    case(
        "files_of_bytes_as_text",
        replace(BILLS, source=Files("bills", format="csv", max_bytes="1 GB")),
        "bronze/bills.py: Files's max_bytes is '1 GB': it has to be a whole number or None",
    ),
    case(
        "flow_at_a_number",
        replace(READINGS, schedule=30),
        "silver/readings.py: schedule is 30: it has to be text or a tuple of text or None",
    ),
    case(
        "too_little_memory_for_python",
        replace(READINGS, transform=lambda rows: rows, python=PythonLimits(memory_mb=100, seconds=0)),
        "silver/readings.py: PythonLimits's memory_mb is 100: set it to a whole number from 512 to 1000000",
        "silver/readings.py: PythonLimits's seconds is 0: set it to a number above 0",
    ),
    case(
        "fresh_as_text",
        replace(READINGS, fresh_minutes="10 minutes"),
        "silver/readings.py: fresh_minutes is '10 minutes': it has to be a number or None",
    ),
    case(
        "fresh_within_no_minutes",
        replace(READINGS, fresh_minutes=0),
        "silver/readings.py: fresh_minutes is 0: set it to a number above 0",
    ),
    case(
        "interval_beyond_all_dates",
        replace(READINGS, interval_seconds=10**12),
        "silver/readings.py: interval_seconds is 1000000000000: set it to a number from 0.001 to 2678400",
    ),
    case(
        "maintain_is_a_schedule",
        replace(READINGS, maintain="0 3 * * *"),
        "silver/readings.py: maintain is '0 3 * * *': it has to be Maintenance",
    ),
    case(
        "max_bytes_is_text",
        replace(READINGS, source=Delta("bronze.events", max_bytes="1 GB")),
        "silver/readings.py: Delta's max_bytes is '1 GB': it has to be a whole number or None",
    ),
    case(
        "no_files_a_batch",
        replace(READINGS, source=Delta("bronze.events", max_files=0)),
        "silver/readings.py: Delta's max_files is 0: set it to a whole number above 0",
    ),
    case(
        "no_interval",
        replace(READINGS, interval_seconds=0),
        "silver/readings.py: interval_seconds is 0: set it to a number above 0",
    ),
    case(
        "no_offsets",
        replace(EVENTS, source=Kafka("events", max_offsets=0)),
        "bronze/events.py: Kafka's max_offsets is 0: set it to a whole number above 0",
    ),
    case(
        "no_time_travel",
        replace(READINGS, maintain=Maintenance(time_travel_hours=0)),
        "silver/readings.py: Maintenance's time_travel_hours is 0: set it to a number above 0",
    ),
    case(
        "one_rule_without_a_tuple",
        replace(READINGS, expect=KNOWN),
        "silver/readings.py: expect is Expect(name='known', condition='key IS NOT NULL', otherwise='quarantine') "
        "and no tuple: write expect=(...,) with the comma",
    ),
    case(
        "property_is_no_text",
        replace(READINGS, properties={"delta.checkpointInterval": 100}),
        "silver/readings.py: properties['delta.checkpointInterval'] is 100: it has to be text",
    ),
    case(
        "reset_allowed_is_text",
        replace(EVENTS, reset_allowed="never"),
        "bronze/events.py: reset_allowed is 'never': it has to be True or False or None",
    ),
    case(
        "since_version_below_zero",
        replace(READINGS, source=Delta("bronze.events", since_version=-1)),
        "silver/readings.py: Delta's since_version is -1: set it to a version of its source, 0 or more",
    ),
    case(
        "source_is_a_name",
        replace(READINGS, source="bronze.events"),
        "silver/readings.py: source is 'bronze.events': it has to be Kafka or Files or Delta or a dict of Kafka "
        "or Files or Delta",
    ),
    case(
        "target_file_is_text",
        replace(READINGS, maintain=Maintenance(target_file_mb="128 MB")),
        "silver/readings.py: Maintenance's target_file_mb is '128 MB': it has to be a number",
    ),
    case(
        "temporary_is_text",
        replace(READINGS, temporary="yes"),
        "silver/readings.py: temporary is 'yes': it has to be True or False",
    ),
    case(
        "time_column_is_a_list",
        replace(READINGS, time_column=["timestamp"]),
        "silver/readings.py: time_column is ['timestamp']: it has to be text or None",
    ),
    case(
        "transform_is_a_number",
        replace(READINGS, transform=5),
        "silver/readings.py: transform is 5: it has to be a function or text or a dict of a function or text or None",
    ),
    case(
        "unique_as_one_string",
        replace(READINGS, write=Append(unique=("key"))),
        "silver/readings.py: Append's unique is 'key' and no tuple: write unique=(...,) with the comma",
    ),
    case(
        "values_of_other_kinds",
        replace(
            READINGS,
            source=Delta(["bronze.events"], max_files=True),
            driver=5,
            interval_seconds="10",
            expect=(Expect(7, "key IS NOT NULL"),),
            cluster_by=("offset", 3),
            maintain=Maintenance(every_batches=1.5),
            write=Append(unique=("key",), watermark=Watermark(of=5, minutes=float("nan"))),
        ),
        "silver/readings.py: Delta's table is ['bronze.events']: it has to be text",
        "silver/readings.py: Delta's max_files is True: it has to be a whole number",
        "silver/readings.py: Watermark's of is 5: it has to be text",
        "silver/readings.py: Watermark's minutes is nan: set it to a number above 0",
        "silver/readings.py: Expect's name is 7: it has to be text",
        "silver/readings.py: Maintenance's every_batches is 1.5: it has to be a whole number",
        "silver/readings.py: interval_seconds is '10': it has to be a number",
        "silver/readings.py: driver is 5: it has to be text",
        "silver/readings.py: cluster_by is ('offset', 3): it has to be a tuple of text",
    ),
    case(
        "watermark_is_a_column",
        replace(READINGS, write=Append(unique=("key",), watermark="timestamp")),
        "silver/readings.py: Append's watermark is 'timestamp': it has to be Watermark or None",
    ),
    case(
        "watermark_of_no_minutes",
        replace(READINGS, write=Append(unique=("key",), watermark=Watermark("timestamp", minutes=0))),
        "silver/readings.py: Watermark's minutes is 0: set it to a number above 0",
    ),
    case(
        "write_is_a_name",
        replace(READINGS, write="append"),
        "silver/readings.py: write is 'append': it has to be Append or Upsert or Replace",
    ),
)
