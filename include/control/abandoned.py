"""Flows that wait stopped for a job that has died, and that nobody starts until that job was ended by another."""

import json

from sqlalchemy import Connection, select

from include.control import backfills as jobs_of_backfills
from include.control import lease
from include.control import rewinds as jobs_of_rewinds
from include.control.decide import Failure
from include.control.schema import backfills, rewinds


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
    left = select(backfills).where(backfills.c.ended_at.is_(None), backfills.c.readers.is_not(None))
    return found | {
        flow: _by("backfill", one.number, one.target)
        for one in connection.execute(left)
        if jobs_of_backfills.of_job(one.root) not in alive
        for flow in json.loads(one.readers)
    }


def _by(kind: str, number: int, table: str) -> Failure:
    return Failure(f"stopped by {kind} {number} of {table}, which died", f"{kind.upper()}_UNFINISHED", True)
