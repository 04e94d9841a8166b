"""Finds flows that a dead job has stopped. Nobody starts them until the job is completed or given up."""

import json

from sqlalchemy import Connection, select

from include.control import lease
from include.control.jobs import backfills as jobs_of_backfills
from include.control.jobs import rewinds as jobs_of_rewinds
from include.control.observed_flow import Failure
from include.control.store.job_schema import backfills, requests, rewinds


def flows(connection: Connection) -> dict[str, Failure]:
    """By flow, the job that has stopped it and died, as a failure that needs a person."""
    holders = lease.alive(connection)
    unfinished = select(rewinds).where(rewinds.c.ended_at.is_(None), rewinds.c.stopped.is_not(None))
    by_rewinds = {
        flow: _to_failure("rewind", job.number, job.target)
        for job in connection.execute(unfinished)
        if jobs_of_rewinds.lease_name(job.number) not in holders
        for flow in json.loads(job.stopped)
    }
    with_requests = backfills.outerjoin(requests, requests.c.root == backfills.c.root)
    is_unfinished = backfills.c.ended_at.is_(None) & backfills.c.readers.is_not(None)
    unfinished = select(backfills, requests.c.driver).select_from(with_requests).where(is_unfinished)
    return by_rewinds | {
        flow: _to_failure("backfill", job.number, job.target)
        for job in connection.execute(unfinished)
        if holders.keys().isdisjoint((jobs_of_backfills.lease_name(job.root), lease.driver_lease(job.driver or "")))
        for flow in json.loads(job.readers)
    }


def _to_failure(kind: str, number: int, table: str) -> Failure:
    return Failure(f"stopped by {kind} {number} of {table}, which died", f"{kind.upper()}_UNFINISHED", True)
