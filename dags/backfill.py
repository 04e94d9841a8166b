"""Makes a range of $table again, by today's code, while the streams go on.

    airflow dags trigger backfill.$table -c '{"from": "2026-03-01", "to": "2026-03-08"}'
    airflow backfill create --dag-id backfill.$table --from-date 2026-03-01 --to-date 2026-03-07 \\
        --max-active-runs 2 [--reprocess-behavior completed]

The second makes a run for each day, `--to-date` included; days that were made before only with --reprocess-behavior.
`plan` says what will be done. `in_driver` asks the driver of the table's flow to do it, which takes no start, one after
the other. `backfill` is one spark-submit, and skipped unless the driver does not run, fails or dies; at once with
{"where": "job"}, for a range that is too large for the streams' process. The tables below follow, or are marked STALE.

`sluice jobs` shows how far each has come. A red `backfill` has replaced its range whole or not at all: its log says
why. Cleared, it goes on where it ended. What a driver has in hand, no task ends.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import dag, task

from include import catalog
from include.airflow import dags, jobs, tasks
from include.airflow.dags import Days
from include.airflow.in_driver import BackfillInDriver
from include.project import ranges
from include.spec import Table


def backfills(table: Table) -> None:
    in_slices = table.sliced_by is not None

    @dag(
        dag_id=f"backfill.{table.name}",
        description=dags.description(__doc__, table.name),
        schedule=Days() if in_slices else None,
        start_date=datetime(1970, 1, 1, tzinfo=UTC),
        catchup=False,
        # For manual runs; `airflow backfill create` has its own limit.
        max_active_runs=1,
        params=jobs.BACKFILL_FORM,
        is_paused_upon_creation=False,
        default_args={"owner": dags.owner(table)},
        doc_md=dags.documentation(__doc__, table.name),
        tags=dags.tags("backfill", table),
    )
    def pipeline() -> None:
        @task
        def plan(
            params: Any = None, dag_run: Any = None, data_interval_start: Any = None, data_interval_end: Any = None
        ) -> dict[str, str]:
            is_day = dag_run.run_type == "backfill"
            day = (data_interval_start.isoformat(), data_interval_end.isoformat()) if is_day else None
            return jobs.plan_backfill(table.name, params, day)

        retry_args: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(minutes=1)}
        in_driver = BackfillInDriver(task_id="in_driver", table=table.name, fallback_task="backfill", **retry_args)
        range_template = "{{ ti.xcom_pull('plan')['%s'] }}"
        range_ = ["--from", range_template % "from", "--to", range_template % "to"] if in_slices else []
        arguments = ["--table", table.name, *range_, "--run", "{{ run_id }}"]
        run = tasks.job("backfill", "backfill", arguments, f"backfill {table.name}", retries=2)
        plan() >> in_driver >> run

    pipeline()


for declared in catalog.load().tables.values():
    if ranges.refusal(declared) is None:
        backfills(declared)
