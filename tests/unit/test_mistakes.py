"""Each wrong table file of tests/mistakes is refused in one sentence that names the file, the value and the remedy."""

from pathlib import Path

import pytest

from include import catalog
from include.errors import DeclarationError

MISTAKES = Path(__file__).resolve().parent.parent / "mistakes"

SENTENCES = {
    "aggregate_of_a_step_over_changes": "include/tables/gold/by_hour.py: source 'silver.changed' is a temporary "
    "step over changes, and an aggregate is recomputed from rows: read the changes without a step between",
    "aggregate_of_a_view": "include/tables/gold/readings.py: source 'silver.latest' is a materialized view, and a "
    "stream would stop at its next refresh, which replaces all rows: read what the view reads, "
    "or make this table a view, write=Replace()",
    "aggregate_of_kafka": "include/tables/gold/by_minute.py: an aggregate is recomputed from a Delta table, and its "
    "source is none: read one",
    "appends_of_an_upserted_table": "include/tables/gold/by_hour.py: source 'silver.by_minute' is upserted, and a "
    "stream of appends would stop at the first changed row: read its changes, Delta('silver.by_minute', "
    "changes=True)",
    "avro_field_is_misspelt": "include/tables/silver/readings.py: into names 'device', which no schema of its "
    "Avro has: did you mean 'devise'?",
    "avro_schema_by_name": "include/tables/silver/readings.py: schema id 'reading-v1' is none that a registry "
    "gives: it is a whole number from 0 on",
    "avro_schema_is_no_json": 'include/tables/silver/readings.py: Avro schema \'{"type": "record", "name": '
    '"Reading", "fields": [{"name": "d\' is no schema of a record (Expecting \',\' delimiter: line 1 column 87 (char '
    "86)): mend it",
    "avro_schema_is_no_record": "include/tables/silver/readings.py: Avro schema '\"string\"' is no schema of a "
    "record (it is no record): mend it",
    "avro_with_two_kinds_of_schemas": "include/tables/silver/readings.py: Avro has both schemas and a schema: "
    "name schemas by id where values have a header, else the one schema",
    "avro_without_a_schema": "include/tables/silver/readings.py: Avro has neither schemas nor a schema: name "
    "schemas by id where values have a header, else the one schema",
    "bad_bucket_unit": "include/tables/gold/by_minute.py: bucket unit is 'minutes': did you mean 'minute'?",
    "begins_twice": "include/tables/silver/readings.py: since_version and since both say where it begins: keep one",
    "branch_is_a_name": "include/tables/bronze/events.py: source is 'events-us': it has to be Kafka or Files or Delta",
    "branch_is_no_word": "include/tables/bronze/events.py: branch 'EU west' is no plain word: use small letters, "
    "digits and _",
    "branch_of_an_unknown_table": "include/tables/bronze/events.py: source is 'bronze.event', which no file declares: "
    "did you mean 'bronze.events'?",
    "branches_read_one_topic": "include/tables/bronze/events.py: flows 'bronze.events.eu' and 'bronze.events.us' both "
    "read topic 'events', so its rows would come twice: take one of them out",
    "bucket_is_no_key": "include/tables/gold/by_minute.py: bucket 'minute' is not one of its keys: add it to ('key',)",
    "bucket_of_unknown_column": "include/tables/gold/by_minute.py: bucket of 'timestmap', which its source has not: "
    "did you mean 'timestamp'?",
    "cast_of_an_unknown_column": "include/tables/silver/readings.py: Cast of 'topik', which its source has not: did "
    "you mean 'topic'?",
    "change_feed_switched_off": "include/tables/silver/readings.py: properties switch delta.enableChangeDataFeed "
    "off, and gold.readings reads the changes of this table: take that out",
    "changes_is_text": "include/tables/silver/readings.py: changes is 'yes': it has to be True or False",
    "changes_of_a_temporary_step": "include/tables/gold/readings.py: source 'silver.readings' is a temporary step, "
    "and how its rows are read stands there: write Delta('silver.readings') alone",
    "cluster_by_as_one_string": "include/tables/silver/readings.py: cluster_by is 'offset' and no tuple: write "
    "cluster_by=(...,) with the comma",
    "cluster_by_is_no_column": "include/tables/silver/readings.py: cluster_by names 'ofset', no column of its "
    "schema: did you mean 'offset'?",
    "cluster_by_names_a_column_twice": "include/tables/silver/readings.py: cluster_by names 'offset' twice: take "
    "one out",
    "clustered_and_partitioned": "include/tables/silver/readings.py: cluster_by and partition_by both lay out its "
    "files: keep one, mostly cluster_by",
    "clustered_by_five_columns": "include/tables/silver/readings.py: cluster_by names 5 columns, and Delta takes 4 "
    "at most: keep those that readers filter by",
    "column_of_the_change_feed": "include/tables/silver/readings.py: column '_change_type' has a name of the change "
    "feed, and gold.readings reads the changes of this table: call it something else",
    "cycle": "include/tables/silver/egg.py: reads itself in a cycle (silver.egg <- silver.hen <- silver.egg): cut one "
    "of these",
    "empty_schema": "include/tables/silver/readings.py: schema is empty: name its columns",
    "files_below_a_glob": "include/tables/bronze/bills.py: path 'bills/2019-*' is a pattern: name one folder, and say "
    "pattern= for its files",
    "files_beside_kafka": "include/tables/bronze/events.py: Files stands beside other sources, and its columns come "
    "and go with its files: let it fill a table of its own, and read that",
    "files_in_silver": "include/tables/silver/bills.py: only bronze reads files, so that what arrived is kept as it "
    "arrived: read a bronze table",
    "files_none_a_batch": "include/tables/bronze/bills.py: max_files is 0: set it to a whole number above 0",
    "files_of_an_unknown_format": "include/tables/bronze/bills.py: format is 'cvs': did you mean 'csv'?",
    "files_of_bytes_as_text": "include/tables/bronze/bills.py: max_bytes is '1 GB': set it to a whole number above 0",
    "files_of_json_without_a_header": "include/tables/bronze/bills.py: header=False, and json has no header: leave it "
    "out",
    "files_with_a_parse": "include/tables/bronze/bills.py: parse would alter what arrived, and bronze keeps it as it "
    "came: put it on the silver table",
    "files_with_a_path_as_pattern": "include/tables/bronze/bills.py: pattern is '2019/*.csv': it has to match names "
    "of files, such as '*.csv'",
    "files_with_a_wide_pattern": "include/tables/bronze/bills.py: pattern is '*.{csv,txt}': use * and ? alone",
    "files_with_an_unknown_mode": "include/tables/bronze/bills.py: new_columns is 'rescued': did you mean 'rescue'?",
    "files_with_their_own_columns": "include/tables/bronze/bills.py: '_filename' is a column that every table of "
    "files has: take it out of its schema",
    "files_with_types": "include/tables/bronze/bills.py: column 'what it cost' is declared DECIMAL, and CSV is kept "
    "as text: declare it STRING, and type it in silver with parse=Cast(...)",
    "files_with_unique": "include/tables/bronze/bills.py: unique would alter what arrived, and bronze keeps it as it "
    "came: put it on the silver table",
    "files_without_a_folder": "include/tables/bronze/bills.py: path is '': name the folder in which the files land",
    "first_by_is_no_column": "include/tables/silver/readings.py: key 'arrival' is not a column of its schema: there "
    "are key, offset, timestamp",
    "flow_at_a_number": "include/tables/silver/readings.py: schedule is 30: it has to be str or NoneType",
    "flow_at_no_time": "include/tables/silver/readings.py: schedule is 'nightly', which is not the five fields of "
    "cron: write '0 3 * * *'",
    "flow_at_times_and_in_windows": "include/tables/silver/readings.py: schedule is '0 3 * * *', and what its source "
    "gathers is merged in windows, which have their own: write maintain=Maintenance(schedule='0 3 * * *')",
    "flow_at_times_and_intervals": "include/tables/silver/readings.py: schedule and interval_seconds both say when it "
    "reads: keep one",
    "fresh_as_text": "include/tables/silver/readings.py: fresh_minutes is '10 minutes': it has to be int or float or "
    "NoneType",
    "fresh_within_no_minutes": "include/tables/silver/readings.py: fresh_minutes is 0: set it to a number above 0, or "
    "leave it out",
    "gold_reads_kafka": "include/tables/gold/readings.py: only bronze reads Kafka, so that what arrived is kept as it "
    "arrived: read a bronze table",
    "import_error": "tests/mistakes/import_error/silver/readings.py cannot be imported (ModuleNotFoundError: No "
    "module named 'not_there_at_all'): mend that line; pyspark is imported inside `transform` only",
    "into_is_no_column": "include/tables/silver/readings.py: into names 'devise', no column of its schema: did you "
    "mean 'device'?",
    "key_is_no_column": "include/tables/gold/by_minute.py: key 'kye' is not a column of its schema: did you mean "
    "'key'?",
    "late_rows_fail": "include/tables/silver/readings.py: late is 'fail': there are quarantine, drop",
    "layer_cannot_be_imported": "tests/mistakes/layer_cannot_be_imported/silver/__init__.py cannot be imported "
    "(ModuleNotFoundError: No module named 'not_there_at_all'): mend that line; pyspark is imported inside "
    "`transform` only",
    "maintain_is_a_schedule": "include/tables/silver/readings.py: maintain is '0 3 * * *': it has to be Maintenance",
    "max_bytes_is_text": "include/tables/silver/readings.py: max_bytes is '1 GB': set it to a whole number above 0",
    "name_is_not_its_path": "include/tables/silver/readings.py: name is 'silver.reading', which is not its path: call "
    "it 'silver.readings'",
    "no_branch": "include/tables/bronze/events.py: source has no branch: name at least one, or give it one source",
    "no_files_a_batch": "include/tables/silver/readings.py: max_files is 0: set it to a whole number above 0",
    "no_interval": "include/tables/silver/readings.py: interval_seconds is 0: set it to a number above 0",
    "no_offsets": "include/tables/bronze/events.py: max_offsets is 0: set it to a number above 0",
    "no_table": "tests/mistakes/no_table/silver/readings.py has no `TABLE = Table(...)`: add it, or move the file out "
    "of the tables",
    "no_time_travel": "include/tables/silver/readings.py: time_travel_hours is 0: set it to a number above 0",
    "no_topic": "include/tables/bronze/events.py: Kafka has neither topics nor a pattern: give it one of them",
    "one_rule_without_a_tuple": "include/tables/silver/readings.py: expect is Expect(name='known', condition='key IS "
    "NOT NULL', otherwise='quarantine') and no tuple: write expect=(...,) with the comma",
    "owner_is_empty": "include/tables/silver/readings.py: owner is '': write the name of a team or a person",
    "parsed_without_errors": "include/tables/silver/readings.py: parse without a column for what cannot be typed: add "
    "`_errors ARRAY<STRUCT<field: STRING, message: STRING>>` to its schema",
    "partition_by_is_no_column": "include/tables/silver/readings.py: partition_by names 'day', no column of its "
    "schema: there are key, offset",
    "partitioned_by_every_column": "include/tables/silver/readings.py: partition_by names every column, and none is "
    "left for the files: take one out",
    "pattern_does_not_compile": "include/tables/bronze/events.py: pattern is 'events-[a-z', which is no regular "
    "expression (unterminated character set at position 7): mend it",
    "pattern_of_java_alone": "include/tables/bronze/events.py: pattern is 'events-[a-z&&[^q]]', in which Java and "
    "Python read && in two ways: write it without",
    "property_is_no_text": "include/tables/silver/readings.py: properties is {'delta.checkpointInterval': 100}: it "
    "has to be a dict of texts, such as {'delta.x': 'true'}",
    "reads_itself": "include/tables/silver/readings.py: reads itself in a cycle (silver.readings <- silver.readings): "
    "cut one of these",
    "reference_to_itself": "include/tables/silver/readings.py: reads itself in a cycle (silver.readings <- "
    "silver.readings): cut one of these",
    "reference_to_unknown_key": "include/tables/silver/readings.py: rule 'offset in bronze.events' looks for 'ofset', "
    "no column of bronze.events: did you mean 'offset'?",
    "reference_to_unknown_table": "include/tables/silver/readings.py: rule 'offset in bronze.event' looks into "
    "'bronze.event', which no file declares: did you mean 'bronze.events'?",
    "retention_as_a_property": "include/tables/silver/readings.py: properties set "
    "'delta.deletedFileRetentionDuration': the vacuum guard sets it, by what streams still need: say "
    "maintain=Maintenance(time_travel_hours=...) instead",
    "rule_named_like_late_rows": "include/tables/silver/readings.py: a rule is called 'later than 30 minutes', as late"
    " rows are: give it another name",
    "rule_of_unknown_column": "include/tables/silver/readings.py: rule 'ofset not null' names 'ofset', no column of "
    "its schema: did you mean 'offset'?",
    "rule_over_nothing": "tests/mistakes/rule_over_nothing/silver/readings.py cannot be imported (ValueError: a rule "
    "over nothing: name a column, or a value): mend that line; pyspark is imported inside `transform` only",
    "reset_allowed_is_text": "include/tables/bronze/events.py: reset_allowed is 'never': it has to be True or False",
    "reset_allowed_on_a_temporary_step": "include/tables/silver/readings.py: reset_allowed is of no use to a "
    "temporary step, which is not stored: put it on the tables that read it",
    "reset_allowed_on_a_view": "include/tables/gold/latest.py: reset_allowed is of no use to a materialized view: it "
    "is computed in full with each refresh, so take it out",
    "rules_on_a_temporary_step": "include/tables/silver/readings.py: expect is of no use to a temporary step, which "
    "is not stored: put it on the tables that read it",
    "rules_on_an_aggregate": "include/tables/gold/by_minute.py: expectations stand on a recomputed aggregate: put "
    "them on the table it reads",
    "rules_on_bronze": "include/tables/bronze/events.py: expect would drop messages, and bronze keeps each as it "
    "arrived: put it on the silver table",
    "schedule_is_no_cron": "include/tables/silver/readings.py: schedule is 'nightly', which is not the five fields of "
    "cron: write '0 3 * * *'",
    "schedule_is_out_of_range": "include/tables/silver/readings.py: schedule is '99 * * * *', which is not the five "
    "fields of cron: write '0 3 * * *'",
    "schema_ends_with_a_comma": "include/tables/silver/readings.py: schema has a comma too many after 'offset': take "
    "it out",
    "schema_ids_without_a_column": "include/tables/bronze/events.py: schema_ids without a column for them: write "
    "schema=KAFKA_SCHEMA_WITH_IDS",
    "since_version_below_zero": "include/tables/silver/readings.py: since_version is -1: set it to a version of its "
    "source, 0 or more",
    "since_without_a_zone": "include/tables/silver/readings.py: since is '2026-03-01', no moment with its time "
    "zone: write one such as '2026-03-01T00:00:00Z'",
    "source_is_a_name": "include/tables/silver/readings.py: source is 'bronze.events': it has to be Kafka or Files or "
    "Delta",
    "table_beside_the_layers": "tests/mistakes/table_beside_the_layers/readings.py lies in no layer, so it would be "
    "ignored: move it to one of bronze, silver, gold",
    "table_is_another_thing": "tests/mistakes/table_is_another_thing/silver/readings.py has no `TABLE = Table(...)`: "
    "add it, or move the file out of the tables",
    "target_file_is_text": "include/tables/silver/readings.py: target_file_mb is '128 MB': set it to a number above 0",
    "temporary_is_text": "include/tables/silver/readings.py: temporary is 'yes': it has to be True or False",
    "temporary_step_reads_kafka": "include/tables/bronze/events.py: a temporary step keeps nothing, and what "
    "arrives has to be kept: let it read a table",
    "temporary_step_upserts": "include/tables/silver/readings.py: write is of no use to a temporary step, which is "
    "not stored: put it on the tables that read it",
    "temporary_steps_in_a_cycle": "include/tables/silver/egg.py: reads itself in a cycle (silver.egg <- silver.hen "
    "<- silver.egg): cut one of these",
    "time_column_is_no_column": "include/tables/silver/readings.py: time_column is 'tiem', no column of its schema: "
    "did you mean 'time'?",
    "time_column_is_no_time": "include/tables/silver/readings.py: time_column 'offset' is BIGINT: name a column that "
    "is TIMESTAMP or DATE",
    "time_column_on_a_view": "include/tables/gold/latest.py: time_column is for tables of appends, and a view is "
    "computed in full with each refresh: take it out",
    "time_column_on_an_upsert": "include/tables/gold/by_minute.py: time_column is for tables of appends, and an Upsert "
    "is backfilled by its bucket, or as a whole without one: take it out",
    "topic_named_twice": "include/tables/bronze/events.py: topic 'events' is named twice: take one of them out",
    "topics_and_pattern": "include/tables/bronze/events.py: Kafka has both topics and a pattern: give it one of them",
    "topics_in_one_string": "include/tables/bronze/events.py: topic 'events,clicks' has a name that Kafka does not "
    "allow: use letters, digits, . _ and -",
    "transform_is_a_number": "include/tables/silver/readings.py: transform is 5: it has to be a function or SQL text",
    "transform_is_empty": "include/tables/silver/readings.py: transform is ' ': it has to be a function or SQL text",
    "two_rules_with_one_name": "include/tables/silver/readings.py: two rules are called 'known': give each a name of "
    "its own",
    "unique_as_one_string": "include/tables/silver/readings.py: unique is 'key' and no tuple: write unique=(...,) "
    "with the comma",
    "unique_is_no_column": "include/tables/silver/readings.py: key 'ofset' is not a column of its schema: did you "
    "mean 'offset'?",
    "unique_on_bronze": "include/tables/bronze/events.py: unique would drop messages, and bronze keeps each as it "
    "arrived: put it on the silver table",
    "unknown_action": "include/tables/silver/readings.py: rule 'known' says otherwise='quarantined': did you mean "
    "'quarantine'?",
    "unknown_layer": "tests/mistakes/unknown_layer/sliver/readings.py lies in no layer, so it would be ignored: move "
    "it to one of bronze, silver, gold",
    "unknown_source": "include/tables/silver/readings.py: source is 'bronze.event', which no file declares: did you "
    "mean 'bronze.events'?",
    "unknown_source_like_nothing": "include/tables/silver/readings.py: source is 'zzz', which no file declares: there "
    "are bronze.events, silver.readings",
    "upsert_of_branches": "include/tables/gold/by_minute.py: Upsert has several sources, and the rows of one would "
    "overwrite those of another: append the branches to a table of their own, and upsert from that",
    "upsert_without_keys": "include/tables/gold/by_minute.py: Upsert has no keys: name the columns that identify a row",
    "view_as_a_stream": "include/tables/gold/readings.py: source 'silver.latest' is a materialized view, and a "
    "stream would stop at its next refresh, which replaces all rows: read what the view reads, "
    "or make this table a view, write=Replace()",
    "view_of_a_step": "include/tables/gold/latest.py: source 'silver.readings' is a temporary step, and a view "
    "reads what is stored: store it, or do the same in the transform of the view",
    "view_of_an_unknown_table": "include/tables/gold/latest.py: source is 'bronze.event', which no file declares: did "
    "you mean 'bronze.events'?",
    "view_of_changes": "include/tables/gold/latest.py: source 'bronze.events' says changes, and a view reads all "
    "rows of one version: write Delta('bronze.events') alone",
    "view_of_kafka": "include/tables/gold/latest.py: Replace reads Kafka, and a view is computed anew from "
    "stored tables: read the bronze table that keeps it",
    "view_of_nothing": "include/tables/gold/latest.py: source is empty: name the tables that the view reads",
    "view_of_some_files": "include/tables/gold/latest.py: source 'bronze.events' says max_files, and a view reads all"
    " rows of one version: write Delta('bronze.events') alone",
    "view_quarantines": "include/tables/gold/latest.py: rule 'keyed' quarantines, and no row could be put back into"
    " a view, which is computed anew: write otherwise='drop', 'warn' or 'fail', or put the rule"
    " on the table it reads",
    "view_since": "include/tables/gold/latest.py: source 'bronze.events' says since, and a view reads all "
    "rows of one version: write Delta('bronze.events') alone",
    "view_that_is_a_step": "include/tables/gold/latest.py: temporary is of no use to a materialized view: a view is "
    "there to be stored, so keep one of write=Replace() and temporary=True",
    "view_with_a_driver": "include/tables/gold/latest.py: driver is of no use to a materialized view: it is refreshed"
    " by a job of its own, so take it out",
    "view_with_a_name_of_two_words": "include/tables/gold/latest.py: source has the name 'all events', no plain word: "
    "use small letters, digits and _",
    "view_with_a_parse": "include/tables/gold/latest.py: parse is of no use to a materialized view: what arrives is "
    "typed where it is kept, so read a silver table",
    "view_with_an_interval": "include/tables/gold/latest.py: interval_seconds is of no use to a materialized view: it "
    "is refreshed by its schedule, so write schedule='0 3 * * *'",
    "view_with_another_argument": "include/tables/gold/latest.py: its transform does not take its sources by name "
    "(missing a required argument: 'others'): write `def transform(events, again)`",
    "view_with_unique": "include/tables/gold/latest.py: rule 'key unique' looks into stored rows, which a view "
    "replaces: do that in its transform",
    "view_without_a_transform": "include/tables/gold/latest.py: Replace has several sources and no transform: write "
    "one, `def transform(events, again)`",
    "watermark_is_a_column": "include/tables/silver/readings.py: watermark is 'timestamp': it has to be Watermark",
    "watermark_of_no_minutes": "include/tables/silver/readings.py: minutes is 0: set it to a number above 0",
    "watermark_of_unknown_column": "include/tables/silver/readings.py: watermark of 'timestmap', no column of its "
    "schema: did you mean 'timestamp'?",
    "watermark_without_unique": "include/tables/silver/readings.py: watermark without unique: name the columns by "
    "which a repeated row is known",
    "write_is_a_name": "include/tables/silver/readings.py: write is 'append': it has to be Append or Upsert or Replace",
    "wrong_argument": "tests/mistakes/wrong_argument/silver/readings.py cannot be imported (TypeError: "
    "Table.__init__() got an unexpected keyword argument 'retention'): mend that line; pyspark is imported inside "
    "`transform` only",
}

RIGHT = {"unique_as_a_list"}


@pytest.mark.parametrize("case", SENTENCES)
def test_a_wrong_table_file_is_refused_in_one_exact_sentence(case: str):
    with pytest.raises(DeclarationError) as refusal:
        catalog.load(f"tests.mistakes.{case}")
    assert str(refusal.value) == SENTENCES[case]


def test_names_in_a_list_are_as_good_as_names_in_a_tuple():
    assert list(catalog.load("tests.mistakes.unique_as_a_list").tables) == ["bronze.events", "silver.readings"]


def test_every_directory_of_mistakes_has_its_test():
    found = {entry.name for entry in MISTAKES.iterdir() if entry.is_dir() and not entry.name.startswith("_")}
    assert found == {*SENTENCES, *RIGHT}
