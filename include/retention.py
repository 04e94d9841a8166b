"""Retention and size limits of everything that Sluice writes outside the tables. All limits are in this module.

Ages are in days, sizes in bytes. Commands of persons and their results are kept for longer than a year.
"""

# Control database: commands of persons, and their results.
AUDIT_DAYS = 400
INCIDENT_DAYS = 400
JOB_DAYS = 400
WINDOW_DAYS = 400
SHUTDOWN_DAYS = 400
# Control database: routine records, such as skipped windows, scheduled runs, pauses at the gate, released readers.
ROUTINE_DAYS = 30
# Control database: a sample of each flow a minute, for charts.
SAMPLE_DAYS = 7

# Airflow: DAG runs with their task instances, and task logs. The newest run of each DAG stays.
AIRFLOW_DAYS = 14
TASK_LOG_DAYS = 14
TASK_LOG_BYTES = 200_000_000

# The log of a process is rotated at this size. One older log is kept.
LOG_BYTES = 20_000_000
LINEAGE_BYTES = 10_000_000

# Query progress: in the progress table, and in the journals that are not yet collected.
PROGRESS_DAYS = 30
JOURNAL_BYTES = 500_000_000

# Checkpoints: generations that two newer generations follow. A trace of old rows reads them.
GENERATION_DAYS = 400
# Temporary files that a killed process has left behind.
SCRATCH_DAYS = 7
