"""Restarts, stops, starts or drains a stream, or resets its checkpoint.

Fill in the form (Trigger), or paste, after `source var/env.sh`:

    airflow dags trigger control.stream -c '{"flow": "$table", "action": "restart", "reason": "stuck"}'
    airflow dags trigger control.stream -c '{"driver": "main", "action": "restart", "reason": "new memory setting"}'

| action | what happens |
|---|---|
| restart | ends after the current batch and restarts, with the table file as it is now; for a driver: the process |
| stop, start | stop ends after the current batch and lasts until start, whatever the flow's schedule |
| drain, catch up | reads what the source holds now, then stops; catch up is for a flow that is stopped |
| accept data loss | goes on after the records that Kafka no longer holds: they stay missing, and which is recorded |
| skip | leaves out the batch that its alarm names: what that reads stays missing, and `verify` says so |
| reset checkpoint | begins a new generation of the checkpoint where the table's last commit ended |
| release | lets VACUUM delete what a stopped flow has yet to read; it must then be rebuilt |
| keep old rows | rows that an earlier definition of its table made stay as they are; `status` stops naming them |
| give up | ends the `job` that died, "rewind 3", "backfill 7": its flows go on, and what is not right is STALE |
| acknowledge | silences its alarm for `hours` (24), unless the problem changes: no red task and no message |

Name a flow, or a driver for all its flows. All commands are idempotent. Accept data loss, skip, reset checkpoint,
release and give up wait for approval, 24 hours. Table `audit` records all. A red `now`: recorded, supervise is paused.
"""

from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import dag, task

from include import catalog, logs
from include.airflow import controls, dags, tasks
from include.control.commands import DESTRUCTIVE
from include.control.store import database
from include.control.supervision.supervision import SUPERVISOR
from include.settings import settings

EXAMPLE = dags.example(catalog.load().flows)


@dag(
    dag_id="control.stream",
    description=dags.description(__doc__, EXAMPLE),
    schedule=None,
    params=controls.FORM,
    max_active_runs=100,  # Runs that wait for an approval must not delay others.
    is_paused_upon_creation=False,
    default_args={"owner": dags.OWNER},
    doc_md=dags.documentation(__doc__, EXAMPLE),
    tags=["control", "sluice"],
)
def control() -> None:
    @task.branch
    def check(params: Any = None, dag_run: Any = None, ti: Any = None) -> str:
        command = controls.command(params, dag_run.triggering_user_name)
        if command.action not in DESTRUCTIVE:
            return "obey"
        ti.xcom_push("consequence", controls.describe_effect(command))
        ti.xcom_push("state", controls.approved_state(command))
        return "approve"

    approve = tasks.approval(
        "{{ params.flow or params.job }}: {{ params.action }}?", "{{ ti.xcom_pull('check', key='consequence') }}"
    )

    @task(trigger_rule="none_failed_min_one_success")
    def obey(params: Any = None, dag_run: Any = None, ti: Any = None) -> list[str]:
        command = controls.command(params, dag_run.triggering_user_name)
        answers = ti.xcom_pull("check", key="state"), ti.xcom_pull("approve")
        logs.info(results := controls.run_command(database.connect(settings().control_url), command, *answers))
        return results

    supervise = TriggerDagRunOperator(  # Starts a missing driver now: the next scheduled run may be a minute away.
        task_id="now", trigger_dag_id=SUPERVISOR, logical_date=None, fail_when_dag_is_paused=True
    )
    check_task, obey_task = check(), obey()
    check_task >> [approve, obey_task]
    approve >> obey_task >> supervise


control()
