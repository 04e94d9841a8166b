"""Makes all of a table anew, by today's code, beside the old one: one DAG for each table that allows it.

    airflow dags trigger full_refresh.silver.tracker_readings -c '{"reason": "the model names were wrong"}'
    airflow dags trigger full_refresh.silver.tracker_readings -c '{"reason": "look", "dry_run": true}'

`plan` says what will be done, and what will be gone for good. `approve` waits for a person, for 24 hours (*Required
Actions*). `refresh` is one spark-submit: the old table serves until its one commit, then the tables below are made
again, or with `"alone": true` are STALE. A red `refresh`: its log says why. Cleared, it goes on where it ended.

A table has no such DAG where `reset_allowed` keeps its rows, as by default what Kafka feeds: refresh what reads it.
"""

from airflow.sdk import dag, task

from include import catalog
from include.control import database
from include.declaration import slices
from include.orchestration import full_refresh, tasks
from include.settings import settings


def refreshes(table: str) -> None:
    @dag(
        dag_id=f"full_refresh.{table}",
        schedule=None,
        max_active_runs=1,
        params=full_refresh.FORM,
        is_paused_upon_creation=False,
        doc_md=__doc__,
        tags=["sluice", "full refresh"],
    )
    def pipeline():
        @task
        def plan(params) -> str:
            return full_refresh.plan(table, params)

        approve = tasks.approval(f"{table}: make all of it anew?", "{{ ti.xcom_pull('plan') }}")

        @task
        def check(params, dag_run, ti) -> list[str]:
            engine, who = database.connect(settings().control_url), dag_run.triggering_user_name
            return full_refresh.arguments(table, params, who, ti.xcom_pull("approve"), dag_run.run_id, engine)

        checked = check()
        refresh = tasks.job("refresh", "backfill", checked, f"full refresh {table}", retries=2)
        plan() >> approve >> checked >> refresh

    pipeline()


for one in catalog.load().tables.values():
    if slices.impossible(one, as_a_whole=True) is None:
        refreshes(one.name)
