"""Rewinds a table and all downstream tables to a point in time; their flows then recompute what was undone.

Fill in the form (Trigger), or paste, after `source var/env.sh`:

    airflow dags trigger rewind -c '{"table": "$table", "to": "2026-03-01T12:00Z", "reason": "a bug"}'

`plan` shows to which versions, what that undoes, and why it is refused, if so. `approve` waits for a person, for 24
hours. `rewind` is one spark-submit: the flows stop, each table is restored by one commit, the flows resume in new
generations, the views below are refreshed, and the ledger counts. `sluice jobs` shows how far it
has come. A red `rewind`: its log says why. Cleared, it resumes where it ended. Until it is done, its flows stay
stopped, unless nothing was restored yet: then they resume as if nothing had been requested.
"""

from include.airflow import dags, jobs
from include.airflow.job_dag import SparkJob, Steps, job_dag

job_dag(
    __doc__,
    "rewind",
    Steps(
        SparkJob("rewind", "rewind", lambda run: ["--number", str(run.planned)], retries=2),
        preview=lambda run: jobs.plan_rewind(run.form, run.requester),
        question="{{ params.table }}: back to {{ params.to }}?",
        check=lambda run: jobs.require_approved_rewind(run.planned, run.answer),
    ),
    dags.example(jobs.REWOUND_TABLES),
    params=jobs.REWIND_FORM,
    max_active_runs=10,
)
