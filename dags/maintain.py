"""Keeps $table in shape: plan -> in_driver -> window -> verify.

    airflow dags trigger maintain -c '{"table": "$table"}'
    airflow dags trigger maintain -c '{"table": "$table", "dry_run": true}'

`plan` reads the table's log and shows what is worth doing, and why; mostly nothing is, and `window` is skipped.
`in_driver` runs it in the driver of the table's flow, one window at a time: the flows of the table wait at their gate,
everything else continues. `window` is the same by a spark-submit, and skipped unless the driver does not run,
dies, or the work is too large for it; at once with {"where": "job"}. `verify` looks whether the table is what was
planned and its flows move again. With `dry_run`, `plan` only says what would be done.

`sluice jobs --kind window` lists the windows. A red `verify` says what went wrong, the next run does what is left.
"""

from include import catalog
from include.airflow import dags, maintenance
from include.airflow.job_dag import Driver, SparkJob, Steps, job_dags
from include.control.store.job_id import JobKind

TABLES = catalog.load().tables

job_dags(
    __doc__,
    "maintain",
    TABLES.values(),
    Steps(
        SparkJob("window", "maintain", lambda run: ["--table", run.table, "--window", str(run.planned)]),
        plan=lambda run: maintenance.plan(run.table, run.requester, run.form),
        driver=Driver(JobKind.WINDOW, maintenance.ask_for_window),
        verify=lambda run: maintenance.verify(run.table, run.planned),
    ),
    params=maintenance.FORM,
    crons={name: cron for name, table in TABLES.items() if (cron := dags.window_schedule(table))},
    default_args={"retries": 0},
)
