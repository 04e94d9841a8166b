"""Registers Sluice's timetable with Airflow."""

from airflow.plugins_manager import AirflowPlugin

from include.orchestration.daily_timetable import Days


class Sluice(AirflowPlugin):
    name = "sluice"
    timetables = [Days]
