"""Puts a table, and every table below it, back to a moment; their flows then make again what was undone. Fill in the
form (Trigger), or paste, after `source var/env.sh`:

    airflow dags trigger rewind -c '{"table": "silver.tracker_readings", "to": "2026-03-01T12:00Z", "reason": "a bug"}'

`plan` says to which versions, what that undoes, and why it is refused, if so. `approve` waits for a person, for 24
hours. `rewind` is one spark-submit: the flows stop, each table goes back by one commit, the flows go on in new
generations, the views below are refreshed, and the ledger counts. `python -m include.ledger rewinds` shows how far it
has come. A red `rewind`: its log says why. Cleared, it goes on where it ended; until it is done its flows stay stopped,
unless nothing was put back yet, when they go on as if nothing had been asked.
"""

from datetime import timedelta

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import dag, task

from include.orchestration import launch, oncall, rewind
from include.settings import ROOT


@dag(
    dag_id="rewind",
    schedule=None,
    params=rewind.FORM,
    max_active_runs=10,
    is_paused_upon_creation=False,
    doc_md=__doc__,
    tags=["sluice"],
)
def rewinds():
    @task
    def plan(params, dag_run, ti) -> int:
        number, said = rewind.plan(params, dag_run.triggering_user_name)
        ti.xcom_push("said", said)
        return number

    approve = HITLOperator(
        task_id="approve",
        subject="{{ params.table }}: back to {{ params.to }}?",
        body="{{ ti.xcom_pull('plan', key='said') }}",
        options=[oncall.APPROVE, oncall.REJECT],
        defaults=oncall.REJECT,
        response_timeout=timedelta(hours=24),
        # Airflow fails what is answered within the second in which it began to wait: then it asks again.
        retries=1,
        retry_delay=timedelta(seconds=1),
    )

    @task
    def check(ti) -> None:
        rewind.require_approval(ti.xcom_pull("plan"), ti.xcom_pull("approve"))

    run = SparkSubmitOperator(
        task_id="rewind",
        conn_id=launch.CONNECTION,
        application=str(ROOT / "jobs" / "rewind.py"),
        application_args=["--number", "{{ ti.xcom_pull('plan') }}"],
        name="sluice rewind",
        # What was killed is ended by the next try.
        retries=2,
        retry_delay=timedelta(minutes=1),
        # True would find the driver of an earlier try and go green without running anything.
        durable=False,
    )
    plan() >> approve >> check() >> run


rewinds()
