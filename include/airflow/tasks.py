"""Tasks that several DAGs have: a bounded Spark job, and an approval."""

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import cast

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import Context, Param, XComArg
from airflow.sdk.exceptions import AirflowException

from include import logs
from include.airflow import assets
from include.airflow.approvals import APPROVE, REJECT
from include.airflow.launchers import launch
from include.airflow.launchers.kubernetes import Kubernetes
from include.airflow.launchers.standalone import Standalone
from include.airflow.launchers.yarn import Yarn
from include.settings import ROOT

RETRY_DELAY = timedelta(minutes=1)
POLL_SECONDS = 2


class SparkJobOperator(SparkSubmitOperator):
    """One spark-submit, a pod of Kubernetes, or an application of YARN. On a standalone cluster, where spark-submit
    takes no Python in cluster mode, by its REST API.
    """

    handle: str | None = None

    def execute(self, context: Context) -> None:
        cluster = launch.launcher()
        if isinstance(cluster, Standalone | Kubernetes | Yarn):
            self._run_on(cluster)
        else:
            super().execute(context)

    def on_kill(self) -> None:
        cluster = launch.launcher()
        if self.handle and isinstance(cluster, Standalone | Kubernetes | Yarn):
            cluster.kill(self.handle)
        else:
            super().on_kill()

    def _run_on(self, cluster: Standalone | Kubernetes | Yarn) -> None:
        arguments = [str(argument) for argument in self.application_args or []]
        self.handle = cluster.submit(Path(self.application), arguments, self.name.removeprefix("sluice "))
        logs.info(f"its output: {cluster.log('', self.handle)}")
        while not (state := cluster.state(self.handle)):
            time.sleep(POLL_SECONDS)
        if state != "FINISHED":
            raise AirflowException(f"the job is {state}: read {cluster.log('', self.handle)}")


def job(
    task_id: str,
    module: str,
    arguments: list[str] | XComArg,
    name: str,
    retries: int = 0,
    first: Callable[[Context], None] | None = None,
) -> SparkJobOperator:
    """One spark-submit of `jobs/<module>.py`. retries: for a job whose retry completes a killed one. first: called
    before the job, and may skip it.
    """
    return SparkJobOperator(
        task_id=task_id,
        conn_id=launch.CONNECTION,
        application=str(ROOT / "jobs" / f"{module}.py"),
        # Airflow replaces the result of another task by its value before the job begins.
        application_args=cast(list[str], arguments),
        name=f"sluice {name}",
        retries=retries,
        retry_delay=RETRY_DELAY,
        pre_execute=first,
        post_execute=assets.announce_of_run,
        on_success_callback=assets.record,
        # True would find the driver of an earlier try, and succeed without running anything.
        durable=False,
    )


def approval(subject: str, body: str) -> HITLOperator:
    """The task `approve`: a person approves within 24 hours. Otherwise the following task gets a rejection."""
    # ApprovalOperator would skip the task that writes a rejection to the audit.
    return HITLOperator(
        task_id="approve",
        subject=subject,
        body=body,
        options=[APPROVE, REJECT],
        defaults=REJECT,
        params={"reason": Param("", type="string", description="for whoever reads the audit")},
        response_timeout=timedelta(hours=24),
        # Airflow fails the task if the response arrives within the second in which it began to wait.
        retries=1,
        retry_delay=timedelta(seconds=1),
    )
