"""Recomputes a time range of $table with the current code, while the streams keep running.

    airflow dags trigger backfill -c '{"table": "$table", "from": "2026-03-01", "to": "2026-03-08"}'
    airflow backfill create --dag-id backfill.$table --from-date 2026-03-01 --to-date 2026-03-07 \\
        --max-active-runs 2 [--reprocess-behavior completed]

The second makes a run for each day, `--to-date` included; days that have a run only with --reprocess-behavior. A run of
today is queued until midnight UTC: for its rows so far, trigger a range. It needs the DAG of the table, which is there
unless SLUICE_DAG_PER_TABLE is off.
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
from include.airflow.job_dag import Driver, SparkJob, Steps, job_dags
from include.airflow.run import Run
from include.control.store.job_id import JobKind
from include.project import ranges


def arguments(run: Run) -> list[str]:
    # A table without ranges is recomputed as a whole.
    bounds = [text for bound in ("from", "to") if run.planned[bound] for text in (f"--{bound}", run.planned[bound])]
    return ["--table", run.table, *bounds, "--run", run.id]


job_dags(
    __doc__,
    "backfill",
    [table for table in catalog.load().tables.values() if ranges.refusal(table) is None],
    Steps(
        SparkJob("backfill", "backfill", arguments, retries=2),
        plan=jobs.plan_backfill,
        driver=Driver(JobKind.BACKFILL, jobs.ask_for_backfill),
    ),
    params=jobs.BACKFILL_FORM,
    # For `airflow backfill create`, which has its own limit of concurrent runs, and takes a day of a DAG once.
    earlier_schedule=Days(),
    start_date=datetime(1970, 1, 1, tzinfo=UTC),
)
