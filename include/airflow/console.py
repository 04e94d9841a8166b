"""The console for Airflow: who may see it, by Airflow's own users and rights."""

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import FastAPI, HTTPException
from sqlalchemy import Engine

from include.console import app
from include.console.app import Viewer
from include.control.store import database
from include.control.supervision.supervision import SUPERVISOR
from include.settings import settings

CONTROL = "control.stream"


def viewer(user: GetUserDep) -> Viewer:
    """Who sees the supervisor's DAG sees the console; who may trigger `control.stream` has its buttons.

    Raises HTTPException: 401, by Airflow, for whoever is not signed in, and 403 without the right.
    """
    manager = get_auth_manager()

    def may(method: ResourceMethod, dag: str, entity: DagAccessEntity | None = None) -> bool:
        return manager.is_authorized_dag(method=method, access_entity=entity, details=DagDetails(id=dag), user=user)

    if not may("GET", SUPERVISOR):
        raise HTTPException(403, f"the DAG {SUPERVISOR} is not for you to see, and neither is this page")
    return Viewer(user.get_name(), may("POST", CONTROL, DagAccessEntity.RUN))


def _engine() -> Engine:
    return database.connect(settings().control_url)


def create() -> FastAPI:
    return app.create(viewer, _engine)
