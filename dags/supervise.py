"""Keeps the streams running: each minute, starts what is missing and names what is wrong.

`reconcile` compares the desired with the observed state, starts what is missing and exits immediately; drivers keep
running. Each cause is one red task instance, with the name of its flow or its driver; its log says why and what to do.
Of more than ten, the last one lists the rest. Healthy flows cost nothing.

Each table is an asset, `sluice://<layer>/<name>`. `reconcile` emits an event for each one that has new rows and for
which some DAG waits.
"""

from datetime import timedelta
from typing import Any, cast

from airflow.sdk import Context, dag, task
from airflow.sdk.exceptions import AirflowFailException

from include import catalog
from include.airflow import assets, dags
from include.airflow.supervisor.reconcile import Seen, publish_all, reconcile_all, to_task_arguments
from include.monitoring import new_rows


@dag(
    description=__doc__.splitlines()[0],
    schedule="* * * * *",
    catchup=False,
    max_active_runs=1,
    # A run that hangs, or whose worker was killed, must not block the next ones.
    dagrun_timeout=timedelta(minutes=3),
    is_paused_upon_creation=False,
    default_args={"owner": dags.OWNER, "retries": 0},
    doc_md=__doc__,
    tags=["supervise", "sluice"],
)
def supervise() -> None:
    @task(on_success_callback=assets.record)
    def reconcile(**context: Any) -> list[dict[str, str]]:
        seen = Seen()
        sick_flows = reconcile_all(seen)
        publish_all(seen)
        assets.announce(cast(Context, context), catalog.load().tables, new_rows.BETWEEN_EVENTS_SECONDS, seen.table_logs)
        return to_task_arguments(sick_flows)

    @task(map_index_template="{{ task.op_kwargs['flow'] }}")
    def unhealthy(flow: str, reason: str) -> None:
        raise AirflowFailException(f"{flow}: {reason}")

    unhealthy.expand_kwargs(reconcile())


supervise()
