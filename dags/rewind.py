"""Puts a table, and every table below it, back to a moment; their flows then make again what was undone.

Fill in the form (Trigger), or paste, after `source var/env.sh`:

    airflow dags trigger rewind -c '{"table": "$table", "to": "2026-03-01T12:00Z", "reason": "a bug"}'

`plan` says to which versions, what that undoes, and why it is refused, if so. `approve` waits for a person, for 24
hours. `rewind` is one spark-submit: the flows stop, each table goes back by one commit, the flows go on in new
generations, the views below are refreshed, and the ledger counts. `sluice jobs` shows how far it
has come. A red `rewind`: its log says why. Cleared, it goes on where it ended; until it is done its flows stay stopped,
unless nothing was put back yet, when they go on as if nothing had been asked.
"""

from include.airflow import dags, jobs
from include.airflow.job_dag import SparkJob, job_dag

job_dag(
    __doc__,
    "rewind",
    None,
    SparkJob("rewind", "rewind", ["--number", "{{ ti.xcom_pull('plan') }}"], retries=2),
    example=dags.example(jobs.REWOUND_TABLES),
    preview=lambda run: jobs.plan_rewind(run.form, run.requester),
    question="{{ params.table }}: back to {{ params.to }}?",
    check=lambda run: jobs.require_approved_rewind(run.planned, run.answer),
    params=jobs.REWIND_FORM,
    max_active_runs=10,
)
