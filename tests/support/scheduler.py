"""Airflow's scheduler, one step at a time, without its process."""

from airflow.jobs.job import Job
from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
from airflow.utils.session import create_session
from airflow.utils.sqlalchemy import prohibit_commit


def notice_assets() -> None:
    """Activate the assets that DAGs name."""
    SchedulerJobRunner(Job(), executors=[])._update_asset_orphanage()


def create_runs() -> None:
    """Create the DAG runs that are due."""
    with create_session() as session, prohibit_commit(session) as guard:
        SchedulerJobRunner(Job(), executors=[])._create_dagruns_for_dags(guard, session)
