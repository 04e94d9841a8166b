"""Makes all of a table anew, by today's code, beside the old one: one DAG for each table that allows it.

    airflow dags trigger full_refresh.silver.tracker_readings -c '{"reason": "the model names were wrong"}'
    airflow dags trigger full_refresh.silver.tracker_readings -c '{"reason": "look", "dry_run": true}'

`plan` says what will be done, and what will be gone for good. `approve` waits for a person, for 24 hours (*Required
Actions*). `refresh` is one spark-submit: the old table serves until its one commit, then the tables below are made
again, or with `"alone": true` are STALE. A red `refresh`: its log says why. Cleared, it goes on where it ended.

A table has no such DAG where `reset_allowed` keeps its rows, as by default what Kafka feeds: refresh what reads it.
"""

from datetime import timedelta

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import dag, task

from include import catalog
from include.control import database
from include.declaration import slices
from include.orchestration import full_refresh, launch
from include.settings import ROOT, settings


def question(table: str) -> HITLOperator:
    # Not ApprovalOperator: it skips what follows a rejection, which would then not get into the audit.
    return HITLOperator(
        task_id="approve",
        subject=f"{table}: make all of it anew?",
        body="{{ ti.xcom_pull('plan') }}",
        options=full_refresh.OPTIONS,
        defaults=full_refresh.OPTIONS[-1],
        response_timeout=timedelta(hours=24),
        # Airflow fails what is answered within the second in which it began to wait: then it asks again.
        retries=1,
        retry_delay=timedelta(seconds=1),
    )


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

        @task
        def check(params, dag_run, ti) -> list[str]:
            engine, who = database.connect(settings().control_url), dag_run.triggering_user_name
            return full_refresh.arguments(table, params, who, ti.xcom_pull("approve"), dag_run.run_id, engine)

        checked = check()
        job = str(ROOT / "jobs" / "backfill.py")
        # What was killed is ended by the next try. Durable, it would find the driver of an earlier one and go green.
        again = {"retries": 2, "retry_delay": timedelta(minutes=1), "durable": False}
        named = {"task_id": "refresh", "name": f"sluice full refresh {table}", "conn_id": launch.CONNECTION}
        refresh = SparkSubmitOperator(application=job, application_args=checked, **named, **again)
        plan() >> question(table) >> checked >> refresh

    pipeline()


for one in catalog.load().tables.values():
    if slices.impossible(one, as_a_whole=True) is None:
        refreshes(one.name)
