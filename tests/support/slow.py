"""Which tests `make test` leaves to `make test-rest`, so that it takes minutes: those of SLOW that are not of QUICK.

Each guarantee of docs/concepts/guarantees.md has a test that is not slow; tests/unit/test_targets.py holds this. Where
it has several, QUICK names the cheapest that proves the sentence.
"""

import re


def _listed(text: str) -> list[str]:
    """Folders, files and, indented, tests of the file above. Brackets name one set of parameters of a test."""
    names, file = [], ""
    for line in text.strip().splitlines():
        if line.startswith(" "):
            names = [name for name in names if name != file] + [f"{file}::{line.strip()}"]
        else:
            file = line
            names.append(file)
    return names


SLOW = _listed("""
tests/airflow/test_backfill_dag.py
tests/airflow/test_control.py
tests/airflow/test_housekeeping.py
tests/airflow/test_maintain.py
tests/airflow/test_refresh_dag.py
tests/airflow/test_watchdog.py
tests/docs/test_first_table.py
tests/docs/test_readme.py
tests/docs/test_recipes.py
tests/docs/test_runbooks.py
tests/faults
tests/streaming
tests/tables/test_tracker_readings.py
    test_whatever_arrives_no_row_is_lost_none_is_doubled_and_nothing_raises
tests/unit/airflow/test_publish_progress.py
tests/unit/engine/batch/test_batch.py
tests/unit/engine/check/test_check.py
tests/unit/engine/files/test_any_of.py
tests/unit/engine/jobs
tests/unit/engine/rows
tests/unit/engine/values
tests/unit/ledger/test_ledger_cli.py
tests/unit/local/test_home.py
tests/unit/monitoring/test_first_load.py
    test_a_dimension_that_reads_kafka_is_loaded_up_to_the_ends_that_its_topic_had
tests/unit/monitoring/test_prometheus.py
tests/unit/monitoring/test_status.py
    test_the_command_prints_every_flow_for_people_and_for_programs
tests/unit/project/test_last_good.py
    test_no_known_mistake_costs_another_table
    test_whatever_a_file_holds_the_tables_beside_it_are_as_before
tests/unit/test_walls.py
    test_what_a_docstring_or_a_comment_names_in_backticks_exists
""")
QUICK = _listed("""
tests/docs/test_runbooks.py
    test_every_command_names_a_flow_or_driver_and_an_action_that_exist
    test_every_kind_of_alarm_has_its_page
    test_every_window_that_a_page_asks_for_is_one_of_a_table
tests/faults/changes/test_billing.py
    test_purchases_are_as_the_database_has_them_whatever_becomes_of_the_connector
tests/faults/changes/test_connector.py
    test_each_type_arrives_as_the_database_has_it
tests/faults/platforms/test_committers_on_s3.py
    test_a_commit_whose_answer_is_lost_is_made_once
    test_a_late_commit_fails_by_itself_and_is_made_again_as_the_next_version
tests/faults/platforms/test_kills.py
tests/faults/platforms/test_lease_loss.py
tests/faults/platforms/test_store_faults.py
    test_while_the_store_is_away_every_command_says_so_in_one_sentence
tests/faults/platforms/test_takeover.py
tests/faults/test_branches.py
tests/faults/test_checkpoints.py
    test_a_damaged_checkpoint_is_refused_and_begins_anew_where_the_table_ends
tests/faults/test_definitions.py
    test_a_change_that_its_checkpoint_cannot_follow_is_refused
tests/faults/test_hosts.py
    test_a_flow_that_fails_leaves_the_other_alone_and_starts_again_when_its_table_is_mended
tests/faults/test_in_driver.py
    test_its_own_flows_wait_for_its_window_and_a_driver_without_flows_stays_until_it_is_done
tests/faults/test_interleavings.py
tests/faults/test_refresh.py
    test_a_run_that_died_between_two_views_is_ended_by_the_same_versions
    test_two_jobs_of_one_run_refresh_a_view_once
tests/faults/test_sources.py
    test_a_topic_that_was_created_anew_is_refused_until_its_loss_is_accepted
    test_records_that_retention_took_unread_are_named_and_skipped_only_when_somebody_says_so
tests/faults/test_topics.py
    test_a_topic_that_is_added_to_the_list_or_matches_later_is_read_from_its_beginning
tests/faults/test_windows.py
    test_a_table_file_that_changes_its_table_waits_for_the_window
    test_a_window_makes_few_files_of_many_while_the_flows_go_on
    test_a_window_waits_for_the_batch_in_hand_and_the_next_batch_waits_for_the_window
tests/faults/test_windows_in_driver.py
    test_a_driver_opens_the_windows_it_is_asked_for_and_its_flows_go_on
tests/faults/views/test_failing_rows.py
    test_rows_that_make_a_transform_raise_are_named_by_version_expression_and_value_and_leave_the_view_as_it_was
tests/faults/views/test_incremental_views.py
    test_a_run_that_dies_before_its_commit_adds_its_rows_once
    test_only_appended_files_are_read_and_only_their_rows_are_written
tests/streaming/jobs/test_backfill.py
    test_a_full_refresh_that_dies_half_way_leaves_the_old_table_in_service
    test_a_range_is_what_todays_code_makes_of_its_source_and_nothing_else_changes
    test_whoever_is_killed_leaves_what_the_next_try_ends[failed]
tests/streaming/jobs/test_full_refresh.py
    test_rows_of_files_that_are_gone_are_kept_unless_the_table_file_says_otherwise
tests/streaming/jobs/test_poison_in_jobs.py
    test_a_backfill_quarantines_rows_that_break_a_check_constraint
tests/streaming/jobs/test_preview.py
    test_a_change_is_shown_as_what_the_flow_counts_it
    test_the_newest_records_of_each_partition_of_a_topic_are_read_and_the_broker_keeps_no_trace
tests/streaming/jobs/test_replay.py
    test_a_replay_that_dies_at_a_step_is_ended_by_the_next_one[appended]
tests/streaming/jobs/test_rewind.py
    test_what_a_wrong_transform_made_is_undone_and_made_again_by_the_mended_one
tests/streaming/kafka/test_json_schemas.py
    test_rows_that_break_their_schema_are_quarantined_with_its_id_and_the_field
tests/streaming/kafka/test_kafka_clock.py
    test_a_broker_that_fell_asleep_is_unreachable_in_time_and_never_taken_at_a_wrong_word
tests/streaming/kafka/test_oauth_kafka.py
tests/streaming/kafka/test_secure_kafka.py
    test_topics_of_the_same_name_in_two_clusters_do_not_mix
tests/streaming/kafka/test_topic_reader.py
tests/streaming/rows/test_debezium.py
    test_verify_tells_tombstones_from_what_else_changes_nothing[batches with the fast path]
tests/streaming/rows/test_joins.py
    test_a_batch_that_is_tried_again_with_newer_rows_leaves_nothing_of_its_first_try[fast path]
    test_a_join_across_buckets_is_right_whatever_the_order_in_which_its_events_arrive[fast path]
    test_a_row_gets_the_columns_of_its_partner_and_nulls_without_one[fast path]
tests/streaming/rows/test_merge_batch.py
    test_a_change_is_quarantined_if_a_value_that_could_not_be_typed_decides_whether_it_deletes
tests/streaming/rows/test_odd_records.py
tests/streaming/rows/test_poison.py
    test_each_poisonous_row_is_quarantined_with_its_reason_and_the_flow_goes_on[append]
tests/streaming/rows/test_python.py
    test_a_function_over_its_memory_limit_ends_its_flow_and_another_flow_of_the_session_has_its_own_limit
tests/streaming/rows/test_retained.py
    test_retained_changes_are_stored_before_the_rows_of_their_batch[fast path]
tests/streaming/s3/test_s3_checkpoints.py
    test_a_file_is_one_request_and_a_cancelled_one_is_none
    test_a_file_that_the_store_refuses_is_an_error
    test_a_file_whose_answer_was_lost_is_written
    test_a_log_is_listed_from_a_version_on_however_long_it_is
    test_of_two_drivers_that_write_a_batch_the_later_one_fails
tests/streaming/test_commit_metadata.py
tests/streaming/test_differential.py
    test_both_paths_leave_the_same_rows_quarantine_and_metadata[merge with watermark]
tests/streaming/test_exactly_once.py
    test_a_batch_committed_to_the_table_but_not_to_the_checkpoint_is_not_written_again[by the fast path-silver]
    test_a_batch_that_fails_between_quarantine_and_target_is_written_once[by the fast path]
    test_a_flow_whose_checkpoint_was_deleted_is_refused_instead_of_doubling_its_rows
    test_a_flow_whose_table_was_deleted_is_refused_instead_of_losing_its_rows
tests/streaming/test_files.py
    test_a_file_that_cannot_be_read_stops_no_other_and_is_named_once
tests/streaming/test_growth.py
    test_of_the_commits_of_a_driver_memory_keeps_those_since_a_checkpoint
tests/streaming/test_late_errors.py
    test_a_batch_leaves_the_same_whichever_call_fails_after_its_work[topic-True]
tests/streaming/test_odd_files.py
    test_a_file_of_any_date_is_read_or_named_once_and_hides_no_other
tests/streaming/test_sql_server.py
tests/streaming/test_upgrade.py
tests/unit/engine/jobs/test_plan_text.py
    test_one_literal_of_any_kind_of_expression_makes_another_text
tests/unit/engine/rows/test_event_times.py
tests/unit/engine/rows/test_merge_changes.py
    test_the_rows_do_not_depend_on_the_order_and_the_batches_of_the_changes[without truncates-history]
    test_the_rows_do_not_depend_on_the_order_and_the_batches_of_the_changes[without truncates-latest]
tests/unit/engine/rows/test_parse_debezium.py
    test_an_event_becomes_a_typed_change_with_its_schema_and_without
    test_decimals_that_are_sent_as_bytes_are_exact
    test_places_order_as_those_of_the_database
tests/unit/engine/rows/test_quality.py
    test_a_sequence_is_refused_that_no_later_one_could_overtake_whatever_its_type
    test_of_several_rules_the_strictest_decides_and_each_is_counted
tests/unit/engine/rows/test_watermark.py
    test_both_paths_agree_on_the_row_at_the_watermark_the_row_kept_out_and_the_row_ahead
tests/unit/engine/values/test_exact_values.py
    test_cells_of_csv_files
    test_json_of_kafka
""")
# The control database is tested on both databases. What depends on PostgreSQL has tests of its own.
ON_POSTGRESQL = re.compile(r"tests/unit/.*\[(.*-)?postgresql\b.*\]")


def is_slow(node: str) -> bool:
    """Whether `make test` leaves out the test with this id: path, name and parameters."""
    return (_is_one_of(SLOW, node) and not _is_one_of(QUICK, node)) or bool(ON_POSTGRESQL.fullmatch(node))


def _is_one_of(names: list[str], node: str) -> bool:
    return any(node == name or node.startswith((f"{name}/", f"{name}::", f"{name}[")) for name in names)
