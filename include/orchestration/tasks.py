"""Tasks that several DAGs have: a bounded job, and a question to a person."""

from collections.abc import Callable, Sequence
from datetime import timedelta

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import Context

from include.orchestration import launch
from include.settings import ROOT

APPROVE, REJECT = "Approve", "Reject"


def job(
    task_id: str,
    module: str,
    arguments: Sequence[str],
    name: str,
    retries: int = 0,
    first: Callable[[Context], None] | None = None,
) -> SparkSubmitOperator:
    """One spark-submit of `jobs/<module>.py`. retries: of one that, killed, is ended by its next try. first: is called
    before, and may skip it.
    """
    return SparkSubmitOperator(
        task_id=task_id,
        conn_id=launch.CONNECTION,
        application=str(ROOT / "jobs" / f"{module}.py"),
        application_args=arguments,
        name=f"sluice {name}",
        retries=retries,
        retry_delay=timedelta(minutes=1),
        pre_execute=first,
        # True would find the driver of an earlier try and go green without running anything.
        durable=False,
    )


def approval(subject: str, body: str) -> HITLOperator:
    """`approve`: a person says so within 24 hours, or what follows is told that nobody did."""
    # Not ApprovalOperator: it skips what follows a rejection, which would then not get into the audit.
    return HITLOperator(
        task_id="approve",
        subject=subject,
        body=body,
        options=[APPROVE, REJECT],
        defaults=REJECT,
        response_timeout=timedelta(hours=24),
        # Airflow fails what is answered within the second in which it began to wait: then it asks again.
        retries=1,
        retry_delay=timedelta(seconds=1),
    )
