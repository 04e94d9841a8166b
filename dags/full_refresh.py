"""Rebuilds all rows of $table with the current code, next to the old table.

    airflow dags trigger full_refresh.$table -c '{"reason": "the model names were wrong"}'
    airflow dags trigger full_refresh.$table -c '{"reason": "look", "dry_run": true}'

`plan` shows what will be done, and what will be lost for good. `approve` waits for a person, for 24 hours (*Required
Actions*). `refresh` is one spark-submit: the old table serves until its one commit, then the tables below are
recomputed, or with `"alone": true` become STALE. A red `refresh`: its log says why. Cleared, it resumes where it ended.

A table has no such DAG where `reset_allowed` keeps its rows, as by default what Kafka feeds: refresh what reads it.
"""

from include import catalog
from include.airflow import jobs
from include.airflow.job_dag import SparkJob, job_dag
from include.control.store import database
from include.project import ranges
from include.settings import settings
from include.spec import Table


def full_refresh(table: Table) -> None:
    job_dag(
        __doc__,
        jobs.FULL_REFRESH,
        table,
        SparkJob("refresh", "backfill", retries=2),
        preview=lambda run: (None, jobs.plan_full_refresh(table.name, run.form)),
        question=f"{table.name}: rebuild the whole table?",
        check=lambda run: jobs.full_refresh_arguments(
            table.name, run.form, run.requester, run.answer, run.id, database.connect(settings().control_url)
        ),
        params=jobs.FULL_REFRESH_FORM,
    )


for declared in catalog.load().tables.values():
    if ranges.refusal(declared, as_a_whole=True) is None:
        full_refresh(declared)
