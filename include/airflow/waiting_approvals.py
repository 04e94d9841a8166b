"""The approvals that wait for a person, from Airflow's database, for the console in Airflow's API server."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod
from airflow.models.dag import DagTag
from airflow.models.dagrun import DagRun
from airflow.models.hitl import HITLDetail
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.state import TaskInstanceState
from sqlalchemy import Select, exists, select

from include.airflow.approvals import lacks_role, needs_four_eyes
from include.console.viewer import Approval

# Of all DAGs of Sluice.
TAG = "sluice"
MOST = 50
# An answer while the process that asks still ends makes Airflow fail the task, and ask again.
ASKS_SECONDS = 10


def waiting(user: str, may: Callable[[ResourceMethod, str], bool]) -> list[Approval]:
    """Returns what the user may see, oldest first. may: whether they have the right GET or PUT to answers of a DAG."""
    with create_session() as session:
        rows = session.execute(_query()).all()
    four_eyes = bool(rows) and needs_four_eyes()
    # An answer without the role counts as a rejection.
    has_role = bool(rows) and lacks_role(user) is None
    return [
        _approval(row, user, has_role and may("PUT", row.dag_id), four_eyes) for row in rows if may("GET", row.dag_id)
    ]


def _query() -> Select[Any]:
    task = TaskInstance
    return (
        select(task.dag_id, task.run_id, task.task_id, task.map_index)
        .add_columns(HITLDetail.subject, HITLDetail.body, HITLDetail.created_at)
        .add_columns(DagRun.triggering_user_name, DagRun.conf)
        .join(task, HITLDetail.ti_id == task.id)
        .join(DagRun, (DagRun.dag_id == task.dag_id) & (DagRun.run_id == task.run_id))
        .where(
            HITLDetail.responded_at.is_(None),
            HITLDetail.created_at < datetime.now(UTC) - timedelta(seconds=ASKS_SECONDS),
            task.state.in_([TaskInstanceState.AWAITING_INPUT, TaskInstanceState.DEFERRED]),
            exists().where(DagTag.dag_id == task.dag_id, DagTag.name == TAG),
        )
        .order_by(HITLDetail.created_at)
        .limit(MOST)
    )


def _approval(row: Any, user: str, may_answer: bool, four_eyes: bool) -> Approval:
    form = row.conf or {}
    dag, run, task = (quote(name, safe="") for name in (row.dag_id, row.run_id, row.task_id))
    return Approval(
        row.subject,
        row.body or "",
        f"{dag}/dagRuns/{run}/taskInstances/{task}/{row.map_index}/hitlDetails",
        f"dags/{dag}/runs/{run}",
        str(form.get("table") or form.get("flow") or form.get("job") or row.dag_id),
        row.triggering_user_name or "",
        row.created_at.timestamp(),
        may_answer,
        four_eyes and row.triggering_user_name == user,
    )
