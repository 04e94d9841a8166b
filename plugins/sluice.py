"""Registers Sluice's timetable with Airflow."""

from airflow.plugins_manager import AirflowPlugin

from include.airflow.dags import Days
from include.orchestration import days


class Sluice(AirflowPlugin):
    name = "sluice"
    timetables = [Days, days.Days]
