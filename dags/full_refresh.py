"""Rebuilds all rows of $table with the current code, next to the old table.

    airflow dags trigger full_refresh -c '{"table": "$table", "reason": "the model names were wrong"}'
    airflow dags trigger full_refresh -c '{"table": "$table", "reason": "look", "dry_run": true}'

`plan` shows what will be done, and what will be lost for good. `approve` waits for a person, for 24 hours (*Required
Actions*). `refresh` is one spark-submit: the old table serves until its one commit, then the tables below are
recomputed, or with `"alone": true` become STALE. A red `refresh`: its log says why. Cleared, it resumes where it ended.

The form has no table whose rows `reset_allowed` keeps, as by default what Kafka feeds: refresh what reads it.
"""

from include import catalog
from include.airflow import jobs
from include.airflow.job_dag import SparkJob, Steps, job_dags
from include.control.store import database
from include.project import ranges
from include.settings import settings

job_dags(
    __doc__,
    "full_refresh",
    [table for table in catalog.load().tables.values() if ranges.refusal(table, as_a_whole=True) is None],
    Steps(
        SparkJob("refresh", "backfill", retries=2),
        preview=lambda run: (None, jobs.plan_full_refresh(run.table, run.form)),
        question="{{ params.table }}: rebuild the whole table?",
        check=lambda run: jobs.full_refresh_arguments(
            run.table, run.form, run.requester, run.answer, run.id, database.connect(settings().control_url)
        ),
    ),
    params=jobs.FULL_REFRESH_FORM,
)
