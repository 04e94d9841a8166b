"""Registers Sluice's timetable with Airflow."""

from airflow.plugins_manager import AirflowPlugin

from include.orchestration.days import Days


class Sluice(AirflowPlugin):
    name = "sluice"
    timetables = [Days]
