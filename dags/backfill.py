"""Recomputes a time range of $table with the current code, while the streams keep running.

    airflow dags trigger backfill.$table -c '{"from": "2026-03-01", "to": "2026-03-08"}'
    airflow backfill create --dag-id backfill.$table --from-date 2026-03-01 --to-date 2026-03-07 \\
        --max-active-runs 2 [--reprocess-behavior completed]

The second makes a run for each day, `--to-date` included; days that have a run only with --reprocess-behavior. A run of
today is queued until midnight UTC: for its rows so far, trigger a range.
`plan` shows what will be done. `in_driver` runs it in the driver of the table's flow (no new process), one at a time.
`backfill` is one spark-submit, and skipped unless the driver does not run, fails or dies; at once with
{"where": "job"}, for a range that is too large for the streams' process. The tables below follow, or become STALE.

`sluice jobs` shows the progress. A red `backfill` has replaced its range whole or not at all: its log says why.
Cleared, it resumes where it ended. No task can stop work that a driver has begun.
"""

from datetime import UTC, datetime

from include import catalog
from include.airflow import jobs
from include.airflow.dags import Days
from include.airflow.job_dag import Driver, SparkJob, job_dag
from include.control.store.job_id import JobKind
from include.project import ranges
from include.spec import Table

RANGE = [text for bound in ("from", "to") for text in (f"--{bound}", f"{{{{ ti.xcom_pull('plan')['{bound}'] }}}}")]


def backfill(table: Table) -> None:
    in_slices = table.sliced_by is not None
    arguments = ["--table", table.name, *(RANGE if in_slices else []), "--run", "{{ run_id }}"]
    job_dag(
        __doc__,
        "backfill",
        table,
        SparkJob("backfill", "backfill", arguments, retries=2),
        plan=lambda run: jobs.plan_backfill(table.name, run.form, run.day),
        driver=Driver(JobKind.BACKFILL, jobs.ask_for_backfill),
        params=jobs.BACKFILL_FORM,
        schedule=Days() if in_slices else None,
        # For `airflow backfill create`, which has its own limit of concurrent runs.
        start_date=datetime(1970, 1, 1, tzinfo=UTC),
    )


for declared in catalog.load().tables.values():
    if ranges.refusal(declared) is None:
        backfill(declared)
