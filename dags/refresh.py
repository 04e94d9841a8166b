"""Refreshes the materialized view $table.

`refresh` is one spark-submit: it computes the view in full and replaces it in one commit, so a reader sees the rows of
before or those of now. The DAG run's id is the refresh's: a task that was killed and is retried, or cleared,
completes what is left, and does nothing where all is done. To refresh once more, trigger another run. While a table
that it reads is not stored yet, the task is skipped, and its log says which.

    airflow dags trigger refresh.$table

All views below a table, from one version of it: `spark-submit jobs/refresh.py --table TABLE`
"""

from include import catalog
from include.airflow.job_dag import SparkJob, job_dag
from include.airflow.jobs import skip_without_source
from include.spec import Table


def refresh(view: Table) -> None:
    arguments = ["--table", view.name, "--run", "{{ run_id }}"]
    job_dag(
        __doc__,
        "refresh",
        view,
        # A maintenance window may block the view for a moment.
        SparkJob("refresh", "refresh", arguments, retries=2, first=skip_without_source(view.name)),
        schedule=view.schedule,
    )


for declared in catalog.load().views.values():
    refresh(declared)
