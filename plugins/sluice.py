"""What Airflow has to know of Sluice by name."""

from airflow.plugins_manager import AirflowPlugin

from include.orchestration.daily_timetable import Days


class Sluice(AirflowPlugin):
    name = "sluice"
    timetables = [Days]
