"""How long what is written beside the tables is kept, and how large it may grow: every bound, and only here.

Ages in days, sizes in bytes. Who asked for what, and what came of it, is kept for longer than a year.
"""

# Of the control database: what persons asked for, and what came of it.
AUDIT_DAYS = 400
INCIDENT_DAYS = 400
JOB_DAYS = 400
WINDOW_DAYS = 400
SHUTDOWN_DAYS = 400
# What goes by the clock, and says the same each time: windows that were not worth it, schedules that were followed, how
# long a flow stood at its gate, readers that have let go.
ROUTINE_DAYS = 30

# Of Airflow: its runs with all that belongs to them, and the logs of their tasks. The newest run of each DAG stays.
AIRFLOW_DAYS = 14
TASK_LOG_DAYS = 14
TASK_LOG_BYTES = 200_000_000

# Of each log of a process, before it becomes the one of before, which is lost then.
LOG_BYTES = 20_000_000
LINEAGE_BYTES = 10_000_000

# What drivers wrote down of their queries: in the table, and while nobody gathers it.
PROGRESS_DAYS = 30
JOURNAL_BYTES = 500_000_000

# Of checkpoints: generations that two newer ones follow. A trace of old rows looks into them.
GENERATION_DAYS = 400
# What a process that was killed has left in the folder for temporary files.
SCRATCH_DAYS = 7
