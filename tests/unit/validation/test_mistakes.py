"""Each wrong table file of tests/mistakes is refused in sentences that name the file, the value and the remedy.

What Python or an editor cannot read has a name that ends with `.txt`.
"""

import shutil
from pathlib import Path

import pytest

from include import catalog
from include.errors import DeclarationError

MISTAKES = Path(__file__).resolve().parent.parent / "mistakes"

# Each begins with its path below the directory of its case.
SENTENCES = {
    "aggregate_of_a_step_over_changes": (
        "gold/by_hour.py: source 'silver.changed' is a temporary step over changes, and an aggregate is "
        "recomputed from rows: read the changes without a step between",
    ),
    "aggregate_of_a_view": (
        "gold/readings.py: source 'silver.latest' is a materialized view, and a stream would stop at its next "
        "refresh, which replaces all rows: read what the view reads, or make this table a view, write=Replace()",
    ),
    "aggregate_of_kafka": (
        "gold/by_minute.py: an aggregate is recomputed from a Delta table, and its source is none: read one",
    ),
    "appends_of_an_upserted_table": (
        "gold/by_hour.py: source 'silver.by_minute' is upserted, and a stream of appends would stop at the first "
        "changed row: read its changes, Delta('silver.by_minute', changes=True)",
    ),
    "avro_field_is_misspelt": (
        "silver/readings.py: into names 'device', which no schema of its Avro has: did you mean 'devise'?",
    ),
    "avro_schema_by_name": (
        "silver/readings.py: Avro's schemas has the key 'reading-v1': it has to be a whole number",
    ),
    "avro_schema_is_no_json": (
        'silver/readings.py: Avro schema \'{"type": "record", "name": "Reading", "fields": [{"name": '
        "\"d' is no schema of a record (Expecting ',' delimiter: line 1 column 87 (char 86)): mend it",
    ),
    "avro_schema_is_no_record": (
        "silver/readings.py: Avro schema '\"string\"' is no schema of a record (it is no record): mend it",
    ),
    "avro_with_two_kinds_of_schemas": (
        "silver/readings.py: Avro has both schemas and a schema: name schemas by id where values have a header, "
        "else the one schema",
    ),
    "avro_without_a_schema": (
        "silver/readings.py: Avro has neither schemas nor a schema: name schemas by id where values have a "
        "header, else the one schema",
    ),
    "bad_bucket_unit": ("gold/by_minute.py: bucket unit is 'minutes': did you mean 'minute'?",),
    "begins_twice": ("silver/readings.py: since_version and since both say where it begins: keep one",),
    "branch_is_a_name": ("bronze/events.py: source['us'] is 'events-us': it has to be Kafka or Files or Delta",),
    "branch_is_no_word": ("bronze/events.py: branch 'EU west' is no plain word: use small letters, digits and _",),
    "branch_of_an_unknown_table": (
        "bronze/events.py: source is 'bronze.event', which no file declares: did you mean 'bronze.events'?",
    ),
    "branches_read_one_topic": (
        "bronze/events.py: flows 'bronze.events.eu' and 'bronze.events.us' both read topic 'events', so its rows "
        "would come twice: take one of them out",
    ),
    "bucket_is_no_key": ("gold/by_minute.py: bucket 'minute' is not one of its keys: add it to ('key',)",),
    "bucket_of_unknown_column": (
        "gold/by_minute.py: bucket of 'timestmap', which its source has not: did you mean 'timestamp'?",
    ),
    "cast_of_an_unknown_column": (
        "silver/readings.py: Cast of 'topik', which its source has not: did you mean 'topic'?",
    ),
    "change_feed_switched_off": (
        "silver/readings.py: properties switch delta.enableChangeDataFeed off, and gold.readings reads the "
        "changes of this table: take that out",
    ),
    "changes_is_text": ("silver/readings.py: Delta's changes is 'yes': it has to be True or False",),
    "changes_of_a_temporary_step": (
        "gold/readings.py: source 'silver.readings' is a temporary step, and how its rows are read stands there: "
        "write Delta('silver.readings') alone",
    ),
    "cluster_by_as_one_string": (
        "silver/readings.py: cluster_by is 'offset' and no tuple: write cluster_by=(...,) with the comma",
    ),
    "cluster_by_is_no_column": (
        "silver/readings.py: cluster_by names 'ofset', no column of its schema: did you mean 'offset'?",
    ),
    "cluster_by_names_a_column_twice": ("silver/readings.py: cluster_by names 'offset' twice: take one out",),
    "clustered_and_partitioned": (
        "silver/readings.py: cluster_by and partition_by both lay out its files: keep one, mostly cluster_by",
    ),
    "clustered_by_bytes": (
        "silver/readings.py: cluster_by names 'key', and Delta takes no BINARY there: name another column",
    ),
    "clustered_by_five_columns": (
        "silver/readings.py: cluster_by names 5 columns, and Delta takes 4 at most: keep those that readers filter by",
    ),
    "column_is_a_varchar": (
        "silver/readings.py: column 'key' is VARCHAR, which a Delta table cannot store: declare it STRING",
    ),
    "column_is_an_interval": (
        "silver/readings.py: column 'since' is INTERVAL, which a Delta table cannot store: declare another type",
    ),
    "column_of_the_change_feed": (
        "silver/readings.py: column '_change_type' has a name of the change feed, and gold.readings reads the "
        "changes of this table: call it something else",
    ),
    "column_of_the_quarantine": (
        "silver/readings.py: column '_batch' is one that Sluice adds, to count and quarantine rows: call it "
        "something else",
    ),
    "column_twice": ("silver/readings.py: column 'key' stands in its schema twice: take one out",),
    "column_twice_but_for_capitals": (
        "silver/readings.py: columns 'Offset' and 'offset' differ in capital letters alone, and Spark takes them "
        "for one: rename one of them",
    ),
    "column_with_a_dash": (
        "silver/readings.py: column 'the-offset' has a character that SQL takes in backquotes only: write `the-offset`",
    ),
    "column_with_a_space": (
        "silver/readings.py: column 'the offset' has a character that Delta or SQL refuses: use letters, digits and _",
    ),
    "column_without_a_type": (
        "silver/readings.py: column 'key' has no type: write one behind it, such as `key STRING`",
    ),
    "cycle": ("silver/egg.py: reads itself in a cycle (silver.egg <- silver.hen <- silver.egg): cut one of these",),
    "delta_is_not_imported": ("silver/readings.py:8: 'Delta' is not defined: write `from include.spec import Delta`",),
    "driver_with_a_space": (
        "silver/readings.py: driver is 'my driver', which becomes the name of a file, a lease and a process: use "
        "letters, digits, . _ and -",
    ),
    "empty_schema": ("silver/readings.py: schema is empty: name its columns",),
    "file_ends_the_process": ("silver/readings.py:5: cannot be imported (SystemExit: 1): mend that line",),
    "files_below_a_glob": (
        "bronze/bills.py: path 'bills/2019-*' is a pattern: name one folder, and say pattern= for its files",
    ),
    "files_beside_kafka": (
        "bronze/events.py: Files stands beside other sources, and its columns come and go with its files: let it "
        "fill a table of its own, and read that",
    ),
    "files_in_silver": (
        "silver/bills.py: only bronze reads files, so that what arrived is kept as it arrived: read a bronze table",
    ),
    "files_none_a_batch": ("bronze/bills.py: Files's max_files is 0: set it to a whole number above 0",),
    "files_of_an_unknown_format": ("bronze/bills.py: format is 'cvs': did you mean 'csv'?",),
    "files_of_bytes_as_text": ("bronze/bills.py: Files's max_bytes is '1 GB': it has to be a whole number or None",),
    "files_of_json_without_a_header": ("bronze/bills.py: header=False, and json has no header: leave it out",),
    "files_with_a_parse": (
        "bronze/bills.py: parse would alter what arrived, and bronze keeps it as it came: put it on the silver table",
    ),
    "files_with_a_path_as_pattern": (
        "bronze/bills.py: pattern is '2019/*.csv': it has to match names of files, such as '*.csv'",
    ),
    "files_with_a_wide_pattern": ("bronze/bills.py: pattern is '*.{csv,txt}': use * and ? alone",),
    "files_with_an_unknown_mode": ("bronze/bills.py: new_columns is 'rescued': did you mean 'rescue'?",),
    "files_with_their_own_columns": (
        "bronze/bills.py: '_filename' is a column that every table of files has: take it out of its schema",
    ),
    "files_with_types": (
        "bronze/bills.py: column 'what_it_cost' is declared DECIMAL, and CSV is kept as text: declare it STRING, "
        "and type it in silver with parse=Cast(...)",
    ),
    "files_with_unique": (
        "bronze/bills.py: unique would alter what arrived, and bronze keeps it as it came: put it on the silver table",
    ),
    "files_without_a_folder": ("bronze/bills.py: path is '': name the folder in which the files land",),
    "first_by_is_no_column": (
        "silver/readings.py: key 'arrival' is not a column of its schema: there are key, offset, timestamp",
    ),
    "flow_at_a_number": ("silver/readings.py: schedule is 30: it has to be text or None",),
    "flow_at_no_time": (
        "silver/readings.py: schedule is 'nightly', which is not the five fields of cron: write '0 3 * * *'",
    ),
    "flow_at_times_and_in_windows": (
        "silver/readings.py: schedule is '0 3 * * *', and what its source gathers is merged in windows, which "
        "have their own: write maintain=Maintenance(schedule='0 3 * * *')",
    ),
    "flow_at_times_and_intervals": (
        "silver/readings.py: schedule and interval_seconds both say when it reads: keep one",
    ),
    "fresh_as_text": ("silver/readings.py: fresh_minutes is '10 minutes': it has to be a number or None",),
    "fresh_within_no_minutes": ("silver/readings.py: fresh_minutes is 0: set it to a number above 0",),
    "gold_reads_kafka": (
        "gold/readings.py: only bronze reads Kafka, so that what arrived is kept as it arrived: read a bronze table",
    ),
    "import_error": (
        "silver/readings.py:3: imports 'not_there_at_all', which is not installed: mend the name, or add it to "
        "requirements.txt and run `make lock`",
    ),
    "import_of_a_misspelt_module": (
        "silver/readings.py:3: imports 'include.spek', which is no module of this project: mend the name",
    ),
    "import_of_a_misspelt_name": (
        "silver/readings.py:3: imports 'Tabel', which include.spec has not: did you mean 'Table'?",
    ),
    "indented_with_tabs": ("silver/readings.py:8: is indented with tabs here and with spaces elsewhere: use spaces",),
    "indented_wrongly": (
        "silver/readings.py:5: is indented wrongly (unexpected indent): bring that line in line with those around it",
    ),
    "interval_beyond_all_dates": (
        "silver/readings.py: interval_seconds is 1000000000000: set it to a number from 0.001 to 2678400",
    ),
    "into_is_no_column": ("silver/readings.py: into names 'devise', no column of its schema: did you mean 'device'?",),
    "json_of_an_unknown_column": (
        "silver/readings.py: Json of 'valu', which its source has not: did you mean 'value'?",
    ),
    "key_is_a_map": ("silver/readings.py: key 'tags' is MAP, which Spark cannot compare: name another column",),
    "key_is_no_column": ("gold/by_minute.py: key 'kye' is not a column of its schema: did you mean 'key'?",),
    "keyword_is_misspelt": ("silver/readings.py:5: Table has no 'shedule': did you mean 'schedule'?",),
    "keyword_of_a_rule_is_misspelt": ("silver/readings.py:11: not_null has no 'otherwize': did you mean 'otherwise'?",),
    "keyword_of_delta_is_misspelt": ("silver/readings.py:8: Delta has no 'max_file': did you mean 'max_files'?",),
    "keyword_of_upsert_is_misspelt": ("silver/readings.py:10: Upsert has no 'key': did you mean 'keys'?",),
    "late_rows_fail": ("silver/readings.py: late is 'fail': there are quarantine, drop",),
    "layer_cannot_be_imported": (
        "silver/__init__.py:3: imports 'not_there_at_all', which is not installed: mend the name, or add it to "
        "requirements.txt and run `make lock`",
    ),
    "maintain_is_a_schedule": ("silver/readings.py: maintain is '0 3 * * *': it has to be Maintenance",),
    "max_bytes_is_text": ("silver/readings.py: Delta's max_bytes is '1 GB': it has to be a whole number or None",),
    "name_is_not_defined": ("silver/readings.py:11: 'SCHEMAS' is not defined: did you mean 'SCHEMA'?",),
    "name_is_not_its_path": (
        "silver/readings.py: name is 'silver.reading', which is not its path: call it 'silver.readings'",
    ),
    "name_with_a_capital": (
        "silver/Readings.py: 'Readings' is no name for a table, as SQL, paths and DAG ids have to say it: use "
        "small letters, digits and _",
    ),
    "name_with_a_dash": (
        "silver/my-readings.py: 'my-readings' is no name for a table, as SQL, paths and DAG ids have to say it: "
        "use small letters, digits and _",
    ),
    "no_branch": ("bronze/events.py: source has no branch: name at least one, or give it one source",),
    "no_comment": ("silver/readings.py:5: Table lacks 'comment': add it",),
    "no_files_a_batch": ("silver/readings.py: Delta's max_files is 0: set it to a whole number above 0",),
    "no_interval": ("silver/readings.py: interval_seconds is 0: set it to a number above 0",),
    "no_offsets": ("bronze/events.py: Kafka's max_offsets is 0: set it to a whole number above 0",),
    "no_table": ("silver/readings.py: has no `TABLE = Table(...)`: add it, or move the file out of the tables",),
    "no_time_travel": ("silver/readings.py: Maintenance's time_travel_hours is 0: set it to a number above 0",),
    "no_topic": ("bronze/events.py: Kafka has neither topics nor a pattern: give it one of them",),
    "no_utf8": ("silver/readings.py:5: is not UTF-8 (byte 0xe9): save the file as UTF-8",),
    "one_rule_without_a_tuple": (
        "silver/readings.py: expect is Expect(name='known', condition='key IS NOT NULL', otherwise='quarantine') "
        "and no tuple: write expect=(...,) with the comma",
    ),
    "owner_is_empty": ("silver/readings.py: owner is '': write the name of a team or a person",),
    "parsed_without_errors": (
        "silver/readings.py: parse without a column for what cannot be typed: add `_errors ARRAY<STRUCT<field: "
        "STRING, message: STRING>>` to its schema",
    ),
    "partition_by_is_no_column": (
        "silver/readings.py: partition_by names 'day', no column of its schema: there are key, offset",
    ),
    "partitioned_by_a_struct": (
        "silver/readings.py: partition_by names 'place', and Delta takes no STRUCT there: name another column",
    ),
    "partitioned_by_every_column": (
        "silver/readings.py: partition_by names every column, and none is left for the files: take one out",
    ),
    "pattern_does_not_compile": (
        "bronze/events.py: pattern is 'events-[a-z', which is no regular expression (unterminated character set "
        "at position 7): mend it",
    ),
    "pattern_of_java_alone": (
        "bronze/events.py: pattern is 'events-[a-z&&[^q]]', in which Java and Python read && in two ways: write "
        "it without",
    ),
    "property_is_no_text": ("silver/readings.py: properties['delta.checkpointInterval'] is 100: it has to be text",),
    "reads_itself": (
        "silver/readings.py: reads itself in a cycle (silver.readings <- silver.readings): cut one of these",
    ),
    "reference_to_itself": (
        "silver/readings.py: reads itself in a cycle (silver.readings <- silver.readings): cut one of these",
    ),
    "reference_to_unknown_key": (
        "silver/readings.py: rule 'offset in bronze.events' looks for 'ofset', no column of bronze.events: did "
        "you mean 'offset'?",
    ),
    "reference_to_unknown_table": (
        "silver/readings.py: rule 'offset in bronze.event' looks into 'bronze.event', which no file declares: "
        "did you mean 'bronze.events'?",
    ),
    "reset_allowed_is_text": ("bronze/events.py: reset_allowed is 'never': it has to be True or False or None",),
    "reset_allowed_on_a_temporary_step": (
        "silver/readings.py: reset_allowed is of no use to a temporary step, which is not stored: put it on the "
        "tables that read it",
    ),
    "reset_allowed_on_a_view": (
        "gold/latest.py: reset_allowed is of no use to a materialized view: it is computed in full with each "
        "refresh, so take it out",
    ),
    "retention_as_a_property": (
        "silver/readings.py: properties set 'delta.deletedFileRetentionDuration': the vacuum guard sets it, by "
        "what streams still need: say maintain=Maintenance(time_travel_hours=...) instead",
    ),
    "rule_named_like_late_rows": (
        "silver/readings.py: a rule is called 'later than 30 minutes', as late rows are: give it another name",
    ),
    "rule_of_unknown_column": (
        "silver/readings.py: rule 'ofset not null' names 'ofset', no column of its schema: did you mean 'offset'?",
    ),
    "rule_over_nothing": (
        "silver/readings.py:11: cannot be imported (ValueError: a rule over nothing: name a column, or a value): "
        "mend that line",
    ),
    "rule_without_a_name": (
        "silver/readings.py: a rule has no name, and status and quarantine call it by that: give it one",
    ),
    "rules_on_a_temporary_step": (
        "silver/readings.py: expect is of no use to a temporary step, which is not stored: put it on the tables "
        "that read it",
    ),
    "rules_on_an_aggregate": (
        "gold/by_minute.py: expectations stand on a recomputed aggregate: put them on the table it reads",
    ),
    "rules_on_bronze": (
        "bronze/events.py: expect would drop messages, and bronze keeps each as it arrived: put it on the silver table",
    ),
    "schedule_is_no_cron": (
        "silver/readings.py: schedule is 'nightly', which is not the five fields of cron: write '0 3 * * *'",
    ),
    "schedule_is_out_of_range": (
        "silver/readings.py: schedule is '99 * * * *', which is not the five fields of cron: write '0 3 * * *'",
    ),
    "schedule_runs_backwards": (
        "silver/readings.py: schedule is '0 9-3 * * *', which is not the five fields of cron: write '0 3 * * *'",
    ),
    "schema_ends_with_a_comma": ("silver/readings.py: schema has a comma too many after 'offset': take it out",),
    "schema_ids_without_a_column": (
        "bronze/events.py: schema_ids without a column for them: write schema=KAFKA_SCHEMA_WITH_IDS",
    ),
    "schema_lacks_a_comma": ("silver/readings.py: schema lacks a comma between 'key' and 'offset': write one",),
    "several_files_are_wrong": (
        "silver/others.py:3: imports 'not_there_at_all', which is not installed: mend the name, or add it to "
        "requirements.txt and run `make lock`",
        "silver/readings.py: cluster_by names 'ofset', no column of its schema: did you mean 'offset'?",
    ),
    "several_mistakes_in_one_file": (
        "silver/readings.py: driver is 'my driver', which becomes the name of a file, a lease and a process: use "
        "letters, digits, . _ and -",
        "silver/readings.py: schedule is 'nightly', which is not the five fields of cron: write '0 3 * * *'",
        "silver/readings.py: cluster_by names 'ofset', no column of its schema: did you mean 'offset'?",
        "silver/readings.py: time_column 'offset' is BIGINT: name a column that is TIMESTAMP or DATE",
    ),
    "since_version_below_zero": (
        "silver/readings.py: Delta's since_version is -1: set it to a version of its source, 0 or more",
    ),
    "since_without_a_zone": (
        "silver/readings.py: since is '2026-03-01', no moment with its time zone: write one such as "
        "'2026-03-01T00:00:00Z'",
    ),
    "source_is_a_name": (
        "silver/readings.py: source is 'bronze.events': it has to be Kafka or Files or Delta or a dict of Kafka "
        "or Files or Delta",
    ),
    "syntax_error": ("silver/readings.py:5: is no Python ('(' was never closed): mend that line",),
    "table_beside_the_layers": (
        "readings.py: lies in no layer, so it would be ignored: move it to one of bronze, silver, gold",
    ),
    "table_by_position": ("silver/readings.py:5: Table takes its values by name: write Table(name=...)",),
    "table_is_another_thing": (
        "silver/readings.py: has no `TABLE = Table(...)`: add it, or move the file out of the tables",
    ),
    "target_file_is_text": ("silver/readings.py: Maintenance's target_file_mb is '128 MB': it has to be a number",),
    "temporary_is_text": ("silver/readings.py: temporary is 'yes': it has to be True or False",),
    "temporary_step_reads_kafka": (
        "bronze/events.py: a temporary step keeps nothing, and what arrives has to be kept: let it read a table",
    ),
    "temporary_step_upserts": (
        "silver/readings.py: write is of no use to a temporary step, which is not stored: put it on the tables "
        "that read it",
    ),
    "temporary_steps_in_a_cycle": (
        "silver/egg.py: reads itself in a cycle (silver.egg <- silver.hen <- silver.egg): cut one of these",
    ),
    "time_column_is_a_list": ("silver/readings.py: time_column is ['timestamp']: it has to be text or None",),
    "time_column_is_no_column": (
        "silver/readings.py: time_column is 'tiem', no column of its schema: did you mean 'time'?",
    ),
    "time_column_is_no_time": (
        "silver/readings.py: time_column 'offset' is BIGINT: name a column that is TIMESTAMP or DATE",
    ),
    "time_column_on_a_view": (
        "gold/latest.py: time_column is for tables of appends, and a view is computed in full with each refresh: "
        "take it out",
    ),
    "time_column_on_an_upsert": (
        "gold/by_minute.py: time_column is for tables of appends, and an Upsert is backfilled by its bucket, or "
        "as a whole without one: take it out",
    ),
    "topic_named_twice": ("bronze/events.py: topic 'events' is named twice: take one of them out",),
    "topics_and_pattern": ("bronze/events.py: Kafka has both topics and a pattern: give it one of them",),
    "topics_in_one_string": (
        "bronze/events.py: topic 'events,clicks' has a name that Kafka does not allow: use letters, digits, . _ and -",
    ),
    "transform_is_a_number": ("silver/readings.py: transform is 5: it has to be a function or text or None",),
    "transform_is_empty": ("silver/readings.py: transform is ' ': it has to be a function or SQL text",),
    "two_rules_with_one_name": ("silver/readings.py: two rules are called 'known': give each a name of its own",),
    "unique_as_one_string": (
        "silver/readings.py: Append's unique is 'key' and no tuple: write unique=(...,) with the comma",
    ),
    "unique_is_no_column": ("silver/readings.py: key 'ofset' is not a column of its schema: did you mean 'offset'?",),
    "unique_on_bronze": (
        "bronze/events.py: unique would drop messages, and bronze keeps each as it arrived: put it on the silver table",
    ),
    "unknown_action": ("silver/readings.py: rule 'known' says otherwise='quarantined': did you mean 'quarantine'?",),
    "unknown_layer": (
        "sliver/readings.py: lies in no layer, so it would be ignored: move it to one of bronze, silver, gold",
    ),
    "unknown_source": (
        "silver/readings.py: source is 'bronze.event', which no file declares: did you mean 'bronze.events'?",
    ),
    "unknown_source_like_nothing": (
        "silver/readings.py: source is 'zzz', which no file declares: there are bronze.events, silver.readings",
    ),
    "upsert_of_branches": (
        "gold/by_minute.py: Upsert has several sources, and the rows of one would overwrite those of another: "
        "append the branches to a table of their own, and upsert from that",
    ),
    "upsert_without_keys": ("gold/by_minute.py: Upsert has no keys: name the columns that identify a row",),
    "values_of_other_kinds": (
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
    "view_as_a_stream": (
        "gold/readings.py: source 'silver.latest' is a materialized view, and a stream would stop at its next "
        "refresh, which replaces all rows: read what the view reads, or make this table a view, write=Replace()",
    ),
    "view_of_a_step": (
        "gold/latest.py: source 'silver.readings' is a temporary step, and a view reads what is stored: store "
        "it, or do the same in the transform of the view",
    ),
    "view_of_an_unknown_table": (
        "gold/latest.py: source is 'bronze.event', which no file declares: did you mean 'bronze.events'?",
    ),
    "view_of_changes": (
        "gold/latest.py: source 'bronze.events' says changes, and a view reads all rows of one version: write "
        "Delta('bronze.events') alone",
    ),
    "view_of_kafka": (
        "gold/latest.py: Replace reads Kafka, and a view is computed anew from stored tables: read the bronze "
        "table that keeps it",
    ),
    "view_of_nothing": ("gold/latest.py: source is empty: name the tables that the view reads",),
    "view_of_some_files": (
        "gold/latest.py: source 'bronze.events' says max_files, and a view reads all rows of one version: write "
        "Delta('bronze.events') alone",
    ),
    "view_quarantines": (
        "gold/latest.py: rule 'keyed' quarantines, and no row could be put back into a view, which is computed "
        "anew: write otherwise='drop', 'warn' or 'fail', or put the rule on the table it reads",
    ),
    "view_since": (
        "gold/latest.py: source 'bronze.events' says since, and a view reads all rows of one version: write "
        "Delta('bronze.events') alone",
    ),
    "view_that_is_a_step": (
        "gold/latest.py: temporary is of no use to a materialized view: a view is there to be stored, so keep "
        "one of write=Replace() and temporary=True",
    ),
    "view_with_a_driver": (
        "gold/latest.py: driver is of no use to a materialized view: it is refreshed by a job of its own, so "
        "take it out",
    ),
    "view_with_a_name_of_two_words": (
        "gold/latest.py: source has the name 'all events', no plain word: use small letters, digits and _",
    ),
    "view_with_a_parse": (
        "gold/latest.py: parse is of no use to a materialized view: what arrives is typed where it is kept, so "
        "read a silver table",
    ),
    "view_with_an_interval": (
        "gold/latest.py: interval_seconds is of no use to a materialized view: it is refreshed by its schedule, "
        "so write schedule='0 3 * * *'",
    ),
    "view_with_another_argument": (
        "gold/latest.py: its transform does not take its sources by name (missing a required argument: "
        "'others'): write `def transform(events, again)`",
    ),
    "view_with_unique": (
        "gold/latest.py: rule 'key unique' looks into stored rows, which a view replaces: do that in its transform",
    ),
    "view_without_a_transform": (
        "gold/latest.py: Replace has several sources and no transform: write one, `def transform(events, again)`",
    ),
    "watermark_is_a_column": ("silver/readings.py: Append's watermark is 'timestamp': it has to be Watermark or None",),
    "watermark_of_no_minutes": ("silver/readings.py: Watermark's minutes is 0: set it to a number above 0",),
    "watermark_of_unknown_column": (
        "silver/readings.py: watermark of 'timestmap', no column of its schema: did you mean 'timestamp'?",
    ),
    "watermark_without_unique": (
        "silver/readings.py: watermark without unique: name the columns by which a repeated row is known",
    ),
    "write_is_a_name": ("silver/readings.py: write is 'append': it has to be Append or Upsert or Replace",),
    "wrong_argument": (
        "silver/readings.py:5: Table has no 'retention': there are name, source, comment, schema, parse, "
        "transform, write, expect, maintain, schedule, interval_seconds, fresh_minutes, driver, temporary, "
        "owner, cluster_by, partition_by, time_column, reset_allowed, properties",
    ),
}

RIGHT = {"unique_as_a_list"}


def package_of(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    unreadable = list((MISTAKES / case).rglob("*.py.txt"))
    if not unreadable:
        return f"tests.mistakes.{case}"
    shutil.copytree(MISTAKES / case, tmp_path / case)
    for file in unreadable:
        copied = tmp_path / file.relative_to(MISTAKES)
        copied.rename(copied.with_suffix(""))
    monkeypatch.syspath_prepend(tmp_path)
    return case


@pytest.mark.parametrize("case", SENTENCES)
def test_a_wrong_table_file_is_refused_in_exact_sentences(case: str, tmp_path, monkeypatch):
    package = package_of(case, tmp_path, monkeypatch)
    with pytest.raises(DeclarationError) as refusal:
        catalog.require(package)
    folder = package.replace(".", "/")
    assert str(refusal.value).splitlines() == [f"{folder}/{sentence}" for sentence in SENTENCES[case]]


def test_names_in_a_list_are_as_good_as_names_in_a_tuple():
    assert list(catalog.require("tests.mistakes.unique_as_a_list").tables) == ["bronze.events", "silver.readings"]


def test_every_directory_of_mistakes_has_its_test():
    found = {entry.name for entry in MISTAKES.iterdir() if entry.is_dir() and not entry.name.startswith("_")}
    assert found == {*SENTENCES, *RIGHT}
