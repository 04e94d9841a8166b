"""Puts a table, and every table below it, back to a moment; their flows then make again what was undone.

Fill in the form (Trigger), or paste, after `source var/env.sh`:

    airflow dags trigger rewind -c '{"table": "$table", "to": "2026-03-01T12:00Z", "reason": "a bug"}'

`plan` says to which versions, what that undoes, and why it is refused, if so. `approve` waits for a person, for 24
hours. `rewind` is one spark-submit: the flows stop, each table goes back by one commit, the flows go on in new
generations, the views below are refreshed, and the ledger counts. `sluice jobs` shows how far it
has come. A red `rewind`: its log says why. Cleared, it goes on where it ended; until it is done its flows stay stopped,
unless nothing was put back yet, when they go on as if nothing had been asked.
"""

from typing import Any

from airflow.sdk import dag, task

from include.airflow import dags, jobs, tasks

EXAMPLE = dags.example(jobs.REWOUND_TABLES)


@dag(
    dag_id="rewind",
    description=dags.description(__doc__, EXAMPLE),
    schedule=None,
    params=jobs.REWIND_FORM,
    max_active_runs=10,
    is_paused_upon_creation=False,
    default_args={"owner": dags.OWNER},
    doc_md=dags.documentation(__doc__, EXAMPLE),
    tags=["rewind", "sluice"],
)
def rewinds() -> None:
    @task
    def plan(params: Any = None, dag_run: Any = None, ti: Any = None) -> int:
        number, markdown = jobs.plan_rewind(params, dag_run.triggering_user_name)
        ti.xcom_push("said", markdown)
        return number

    approve = tasks.approval("{{ params.table }}: back to {{ params.to }}?", "{{ ti.xcom_pull('plan', key='said') }}")

    @task
    def check(ti: Any = None) -> None:
        jobs.require_approved_rewind(ti.xcom_pull("plan"), ti.xcom_pull("approve"))

    run = tasks.job("rewind", "rewind", ["--number", "{{ ti.xcom_pull('plan') }}"], "rewind", retries=2)
    plan() >> approve >> check() >> run


rewinds()
