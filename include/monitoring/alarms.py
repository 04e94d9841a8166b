"""Describes the open alarms, and who has acknowledged them."""

from datetime import UTC, datetime

from sqlalchemy import select

from include.control import acknowledgements
from include.control.store import database
from include.control.store.schema import incidents
from include.errors import SluiceError
from include.settings import settings


def by_target() -> dict[str, str]:
    """Returns a description of each open alarm, by target; empty where the control database does not answer.

    A target is a flow, a table, the supervisor, or "window" or "vacuum" with a table.
    """
    try:
        with database.reading(database.connect(settings().control_url)) as connection:
            open_alarms = connection.execute(select(incidents).where(incidents.c.ended_at.is_(None))).all()
            acknowledged = acknowledgements.valid(connection)
    except SluiceError:
        return {}
    alarms = {}
    for alarm in open_alarms:
        since = datetime.fromtimestamp(alarm.began_at, UTC)
        acknowledgement = f" ({acknowledged[alarm.target]})" if alarm.target in acknowledged else ""
        alarms[alarm.target] = f"alarm {alarm.state} since {since:%Y-%m-%d %H:%M}Z{acknowledgement}: {alarm.reason}"
    return alarms
