"""Makes all of $table anew, by today's code, beside the old one.

    airflow dags trigger full_refresh.$table -c '{"reason": "the model names were wrong"}'
    airflow dags trigger full_refresh.$table -c '{"reason": "look", "dry_run": true}'

`plan` says what will be done, and what will be gone for good. `approve` waits for a person, for 24 hours (*Required
Actions*). `refresh` is one spark-submit: the old table serves until its one commit, then the tables below are made
again, or with `"alone": true` are STALE. A red `refresh`: its log says why. Cleared, it goes on where it ended.

A table has no such DAG where `reset_allowed` keeps its rows, as by default what Kafka feeds: refresh what reads it.
"""

from typing import Any

from airflow.sdk import dag, task

from include import catalog
from include.airflow import dags, jobs, tasks
from include.control.store import database
from include.project import ranges
from include.settings import settings
from include.spec import Table


def refreshes(table: Table) -> None:
    @dag(
        dag_id=f"full_refresh.{table.name}",
        description=dags.description(__doc__, table.name),
        schedule=None,
        max_active_runs=1,
        params=jobs.FULL_REFRESH_FORM,
        is_paused_upon_creation=False,
        default_args={"owner": dags.owner(table)},
        doc_md=dags.documentation(__doc__, table.name),
        tags=dags.tags("full refresh", table),
    )
    def pipeline() -> None:
        @task
        def plan(params: Any = None) -> str:
            return jobs.plan_full_refresh(table.name, params)

        approve = tasks.approval(f"{table.name}: make all of it anew?", "{{ ti.xcom_pull('plan') }}")

        @task
        def check(params: Any = None, dag_run: Any = None, ti: Any = None) -> list[str]:
            engine, requester = database.connect(settings().control_url), dag_run.triggering_user_name
            return jobs.full_refresh_arguments(
                table.name, params, requester, ti.xcom_pull("approve"), dag_run.run_id, engine
            )

        arguments = check()
        refresh = tasks.job("refresh", "backfill", arguments, f"full refresh {table.name}", retries=2)
        plan() >> approve >> arguments >> refresh

    pipeline()


for declared in catalog.load().tables.values():
    if ranges.refusal(declared, as_a_whole=True) is None:
        refreshes(declared)
