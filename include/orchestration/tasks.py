"""Tasks that several DAGs have: a bounded job, and a question to a person."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from airflow.configuration import conf
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import Context

from include.orchestration.launchers import launch
from include.settings import ROOT, settings

APPROVE, REJECT = "Approve", "Reject"
# Airflow's own, whose users stand in its settings.
SIMPLE = "SimpleAuthManager"


@dataclass(frozen=True)
class Answer:
    """by: who said so. said: in words."""

    is_approved: bool
    by: str
    said: str


def verdict(answer: dict[str, Any] | None, asked_by: str | None) -> Answer:
    """What came of `approval`. answer: of whoever was asked. asked_by: who may not approve it where others can."""
    # No answer: somebody marked the question as a success instead of answering it.
    user = answer and answer["responded_by_user"]
    if not answer or not user:
        return Answer(False, "", "nobody approved it")
    by = str(user["name"])
    if answer["chosen_options"] != [APPROVE]:
        return Answer(False, by, f"rejected by {by}")
    if by == asked_by and _needs_four_eyes():
        return Answer(False, by, f"{by} asked for it, so that another user has to approve it (SLUICE_FOUR_EYES)")
    return Answer(True, by, f"approved by {by}")


def _needs_four_eyes() -> bool:
    wanted = settings().four_eyes
    return _has_several_users() if wanted is None else wanted


def _has_several_users() -> bool:
    """Of another auth manager nobody here can tell: it is there for several."""
    if not conf.get("core", "auth_manager").endswith(SIMPLE):
        return True
    # Then everybody is one and the same.
    is_open = conf.getboolean("core", "simple_auth_manager_all_admins")
    return not is_open and len(conf.getlist("core", "simple_auth_manager_users")) > 1


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
