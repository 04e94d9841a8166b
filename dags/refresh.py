"""Refreshes the materialized view $table.

`refresh` is one spark-submit: it computes the view in full and replaces it in one commit, so a reader sees the rows of
before or those of now. The DAG run's id is the refresh's: a task that was killed and is tried again, or cleared, does
what is left of it, and nothing where it is done. To refresh once more, trigger another run. While a table that it
reads is not stored yet, the task is skipped, and its log says which.

    airflow dags trigger refresh.$table

All views below a table, from one version of it: `spark-submit jobs/refresh.py --table TABLE`
"""

from datetime import timedelta

from airflow.sdk import dag

from include import catalog
from include.airflow import dags, tasks
from include.airflow.jobs import skip_without_source
from include.spec import Table


def refresh(view: Table) -> None:
    @dag(
        dag_id=f"refresh.{view.name}",
        description=dags.description(__doc__, view.name),
        schedule=view.schedule,
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=False,
        # A maintenance window may block the view for a moment.
        default_args={"owner": dags.owner(view), "retries": 2, "retry_delay": timedelta(minutes=1)},
        doc_md=dags.documentation(__doc__, view.name),
        tags=dags.tags("refresh", view),
    )
    def pipeline() -> None:
        arguments = ["--table", view.name, "--run", "{{ run_id }}"]
        tasks.job("refresh", "refresh", arguments, f"refresh {view.name}", first=skip_without_source(view.name))

    pipeline()


for declared in catalog.load().views.values():
    refresh(declared)
