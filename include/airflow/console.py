"""The console for Airflow: who may see it, by Airflow's own users and rights."""

from dataclasses import dataclass, field
from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from fastapi import FastAPI, HTTPException
from sqlalchemy import Engine, select

from include.airflow import approvals, waiting_approvals
from include.airflow.table_times import table_of_run
from include.console import app
from include.console.viewer import Approval, Viewer
from include.control.store import database
from include.control.supervision.supervision import SUPERVISOR
from include.settings import settings

CONTROL, REPLAY, REWIND = "control.stream", "replay", "rewind"


@dataclass(frozen=True)
class User(Viewer):
    """user: as Airflow knows who is signed in."""

    user: BaseUser | None = field(default=None, repr=False)

    def approvals(self) -> list[Approval]:
        def may(method: ResourceMethod, dag: str) -> bool:
            lacks_role = method == "PUT" and approvals.lacks_role(self.name)
            return not lacks_role and _may(self.user, method, dag, DagAccessEntity.HITL_DETAIL)

        return waiting_approvals.waiting(self.name, may)

    def form(self, dag: str, run: str) -> dict[str, Any]:
        if not _may(self.user, "GET", dag, DagAccessEntity.RUN):
            return {}
        with create_session() as session:
            is_run = (DagRun.dag_id == dag) & (DagRun.run_id == run)
            conf = session.execute(select(DagRun.conf).where(is_run)).scalar_one_or_none()
        return {"table": table_of_run(run), **(conf or {})}


def viewer(user: GetUserDep) -> User:
    """Who sees the supervisor's DAG sees the console; who may trigger a DAG has its buttons.

    Raises HTTPException: 401, by Airflow, for whoever is not signed in, and 403 without the right.
    """
    if not _may(user, "GET", SUPERVISOR):
        raise HTTPException(403, f"the DAG {SUPERVISOR} is not for you to see, and neither is this page")
    return User(
        user.get_name(),
        may_press=_may(user, "POST", CONTROL, DagAccessEntity.RUN),
        may_replay=_may(user, "POST", REPLAY, DagAccessEntity.RUN),
        may_approve=not approvals.lacks_role(user.get_name())
        and _may(user, "PUT", REWIND, DagAccessEntity.HITL_DETAIL),
        user=user,
    )


def _may(user: BaseUser | None, method: ResourceMethod, dag: str, entity: DagAccessEntity | None = None) -> bool:
    manager = get_auth_manager()
    return manager.is_authorized_dag(method=method, access_entity=entity, details=DagDetails(id=dag), user=user)


def _engine() -> Engine:
    return database.connect(settings().control_url)


def create() -> FastAPI:
    return app.create(viewer, _engine)
