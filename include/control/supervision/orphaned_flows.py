"""Flows that wait stopped for a job that has died, and that nobody starts until that job was ended by another."""

import json

from sqlalchemy import Connection, select

from include.control import lease
from include.control.jobs import backfills as jobs_of_backfills
from include.control.jobs import rewinds as jobs_of_rewinds
from include.control.observed_flow import Failure
from include.control.store.job_schema import backfills, requests, rewinds


def flows(connection: Connection) -> dict[str, Failure]:
    """By name, who has left them so."""
    alive = lease.alive(connection)
    left = select(rewinds).where(rewinds.c.ended_at.is_(None), rewinds.c.stopped.is_not(None))
    found = {
        flow: _by("rewind", one.number, one.target)
        for one in connection.execute(left)
        if jobs_of_rewinds.of_job(one.number) not in alive
        for flow in json.loads(one.stopped)
    }
    asked = backfills.outerjoin(requests, requests.c.root == backfills.c.root)
    own = backfills.c.ended_at.is_(None) & backfills.c.readers.is_not(None)
    left = select(backfills, requests.c.driver).select_from(asked).where(own)
    return found | {
        flow: _by("backfill", one.number, one.target)
        for one in connection.execute(left)
        if alive.keys().isdisjoint((jobs_of_backfills.of_job(one.root), lease.of_driver(one.driver or "")))
        for flow in json.loads(one.readers)
    }


def _by(kind: str, number: int, table: str) -> Failure:
    return Failure(f"stopped by {kind} {number} of {table}, which died", f"{kind.upper()}_UNFINISHED", True)
