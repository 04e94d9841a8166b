"""Registers Sluice's timetable with Airflow."""

import importlib
import sys

from airflow.plugins_manager import AirflowPlugin

from include.airflow.dags import Days
from include.orchestration import days

# Airflow's DAG processor forks a process for each DAG file twice a minute, and the process inherits these imports.
if "dag-processor" in sys.argv:
    for module in ("controls", "job_dag", "jobs", "maintenance", "supervisor.reconcile", "tasks"):
        importlib.import_module(f"include.airflow.{module}")


class Sluice(AirflowPlugin):
    name = "sluice"
    timetables = [Days, days.Days]
