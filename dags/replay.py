"""Moves quarantined rows of $table that satisfy today's rules into the table, each exactly once.

Correct the rule in the table file first. Then fill in the form (Trigger), press *replay* on the table's page of Sluice,
or paste, after `source var/env.sh`:

    airflow dags trigger replay -c '{"table": "$table", "reason": "the limit was too low"}'

With `rule`, only rows that broke this rule move. Late rows move only if their rule is named. `plan` refuses a table
without such rows, and writes the audit. `replay` is one spark-submit, in a maintenance window of the table: its log
says how many rows moved, and how many still break a rule. Cleared, it resumes where it ended, and moves no row twice.
"""

from include.airflow import dags, jobs
from include.airflow.job_dag import SparkJob, Steps, job_dag

if jobs.REPLAYED_TABLES:
    job_dag(
        __doc__,
        "replay",
        Steps(
            SparkJob("replay", "backfill", lambda run: jobs.replay_arguments(run.form, run.id), retries=2),
            plan=lambda run: jobs.plan_replay(run.form, run.requester),
        ),
        dags.example(jobs.REPLAYED_TABLES),
        params=jobs.REPLAY_FORM,
        max_active_runs=dags.MOST_RUNS,
    )
