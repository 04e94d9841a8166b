"""Keeps $table in shape: plan -> in_driver -> window -> verify.

    airflow dags trigger maintain.$table
    airflow dags trigger maintain.$table -c '{"dry_run": true}'

`plan` reads the table's log and says what is worth doing, and why; mostly nothing is, and `window` is skipped.
`in_driver` asks the driver of the table's flow to do it, one window after the other: the flows of the table wait at
their gate, everything else goes on. `window` is the same by a spark-submit, and skipped unless the driver does not run,
dies, or the work is too large for it; at once with {"where": "job"}. `verify` looks whether the table is what was
planned and its flows move again. With `dry_run`, `plan` only says what would be done.

`sluice jobs --kind window` shows the calendar. A red `verify` says what went wrong, the next run does what is left.
"""

from typing import Any, cast

from airflow.sdk import dag, task

from include import catalog
from include.airflow import dags, maintenance, tasks
from include.airflow.in_driver import WindowInDriver
from include.spec import Table


def maintain(table: Table) -> None:
    @dag(
        dag_id=f"maintain.{table.name}",
        description=dags.description(__doc__, table.name),
        schedule=dags.window_schedule(table),
        catchup=False,
        max_active_runs=1,
        params=maintenance.FORM,
        is_paused_upon_creation=False,
        default_args={"owner": dags.owner(table), "retries": 0},
        doc_md=dags.documentation(__doc__, table.name),
        tags=dags.tags("maintain", table),
    )
    def pipeline() -> None:
        @task
        def plan(params: Any = None, dag_run: Any = None) -> int | None:
            return maintenance.plan(table.name, dag_run.triggering_user_name or "schedule", params["dry_run"])

        number = plan()
        in_driver = WindowInDriver(task_id="in_driver", table=table.name, fallback_task="window", done_task="verify")
        arguments = ["--table", table.name, "--window", "{{ ti.xcom_pull('plan') }}"]
        window = tasks.job("window", "maintain", arguments, f"maintain {table.name}")

        # Also after a failed window, so that its incident is opened.
        @task(trigger_rule="all_done")
        def verify(number: int) -> None:
            maintenance.verify(table.name, number)

        # At run time Airflow passes the number itself.
        verify_task = verify(cast(int, number))
        number >> in_driver >> [window, verify_task]
        window >> verify_task

    pipeline()


for declared in catalog.load().tables.values():
    maintain(declared)
