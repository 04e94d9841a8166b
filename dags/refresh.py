"""Refreshes $table, a materialized view.

`refresh` is one spark-submit: it computes the view in full and replaces it in one commit, so a reader sees the rows of
before or those of now. The DAG run's id is the refresh's: a task that was killed and is retried, or cleared,
completes what is left, and does nothing where all is done. To refresh once more, trigger another run. While a table
that it reads is not stored yet, the task is skipped, and its log says which.

    airflow dags trigger refresh -c '{"table": "$table"}'

All views below a table, from one version of it: `spark-submit jobs/refresh.py --table TABLE`
"""

from airflow.sdk import Asset, AssetAny

from include import catalog
from include.airflow import assets
from include.airflow.job_dag import SparkJob, Steps, job_dags
from include.airflow.jobs import REFRESH_FORM, begin_refresh

VIEWS = catalog.load().views
STEPS = Steps(
    SparkJob(
        "refresh",
        "refresh",
        lambda run: ["--table", run.table, "--run", run.id],
        # A maintenance window may block the view for a moment.
        retries=2,
        first=begin_refresh,
    )
)

job_dags(
    __doc__,
    "refresh",
    VIEWS.values(),
    STEPS,
    params=REFRESH_FORM,
    crons={name: view.cron for name, view in VIEWS.items() if view.cron},
    own_schedules={
        name: AssetAny(*(Asset(assets.uri(table)) for table in view.refreshed_by))
        for name, view in VIEWS.items()
        if view.refreshed_by
    },
)
