"""Registers Sluice's timetable and its console with Airflow."""

import importlib
import sys
from functools import cached_property
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from include.airflow.dags import Days
from include.airflow.table_times import TableTimes
from include.orchestration import days

# Airflow's DAG processor forks a process for each DAG file twice a minute, and the process inherits these imports.
if "dag-processor" in sys.argv:
    for module in ("assets", "controls", "erasure", "job_dag", "jobs", "maintenance", "supervisor.reconcile", "tasks"):
        importlib.import_module(f"include.airflow.{module}")


class Sluice(AirflowPlugin):
    name = "sluice"
    timetables = [Days, TableTimes, days.Days]
    external_views = [
        {"name": "Sluice", "href": "sluice/", "url_route": "sluice", "destination": "nav"},
        {"name": "Sluice", "href": "sluice/dag/{DAG_ID}", "url_route": "sluice-dag", "destination": "dag"},
        {
            "name": "Sluice",
            "href": "sluice/dag/{DAG_ID}/run/{RUN_ID}",
            "url_route": "sluice-run",
            "destination": "dag_run",
        },
    ]

    @cached_property
    def fastapi_apps(self) -> list[dict[str, Any]]:
        """Only the API server asks for them, so that no other part of Airflow imports the console."""
        console = importlib.import_module("include.airflow.console")
        return [{"app": console.create(), "url_prefix": "/sluice", "name": "Sluice"}]
