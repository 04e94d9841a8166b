"""Keeps $table in shape: plan -> window -> verify.

    airflow dags trigger maintain.$table
    airflow dags trigger maintain.$table -c '{"dry_run": true}'

`plan` reads the table's log and says what is worth doing, and why; mostly nothing is, and the rest is skipped. `window`
is one spark-submit: the flows of the table wait at their gate, everything else goes on. `verify` looks whether the
table is what was planned and its flows move again. With `dry_run`, `plan` only says what would be done.

`python -m include.ledger windows` shows the calendar. A red `window` did not finish: its log says why, the next run
does what is left.
"""

from airflow.sdk import Param, dag, task
from airflow.sdk.exceptions import AirflowSkipException

from include import catalog
from include.orchestration import listing, maintenance, tasks
from include.spec import Table


def maintain(table: Table) -> None:
    @dag(
        dag_id=f"maintain.{table.name}",
        description=listing.description(__doc__, table.name),
        schedule=table.maintain.schedule,
        catchup=False,
        max_active_runs=1,
        params={"dry_run": Param(False, type="boolean", description="say what would be done, and do nothing")},
        is_paused_upon_creation=False,
        default_args={"owner": listing.owner(table), "retries": 0},
        doc_md=listing.documentation(__doc__, table.name),
        tags=listing.tags("maintain", table),
    )
    def pipeline():
        @task
        def plan(params, dag_run) -> int:
            number = maintenance.plan(table.name, dag_run.triggering_user_name or "schedule", params["dry_run"])
            if number is None:
                raise AirflowSkipException("nothing to be done now")
            return number

        number = plan()
        arguments = ["--table", table.name, "--window", "{{ ti.xcom_pull('plan') }}"]
        window = tasks.job("window", "maintain", arguments, f"maintain {table.name}")

        # Also after a window that failed, so that it is told.
        @task(trigger_rule="none_skipped")
        def verify(number: int) -> None:
            maintenance.verify(table.name, number)

        number >> window >> verify(number)

    pipeline()


for one in catalog.load().tables.values():
    maintain(one)
