"""The open alarms, in words, with who has taken them on."""

from datetime import UTC, datetime

from sqlalchemy import select

from include.control import acknowledgements
from include.control.store import database
from include.control.store.schema import incidents
from include.errors import SluiceError
from include.settings import settings


def by_target() -> dict[str, str]:
    """Of a flow, a table, the supervisor, or "window" or "vacuum" and a table. Nothing where nobody can tell."""
    try:
        with database.reading(database.connect(settings().control_url)) as connection:
            open_alarms = connection.execute(select(incidents).where(incidents.c.ended_at.is_(None))).all()
            acknowledged = acknowledgements.current(connection)
    except SluiceError:
        return {}
    alarms = {}
    for alarm in open_alarms:
        since = datetime.fromtimestamp(alarm.began_at, UTC)
        taken_on = f" ({acknowledged[alarm.target]})" if alarm.target in acknowledged else ""
        alarms[alarm.target] = f"alarm {alarm.state} since {since:%Y-%m-%d %H:%M}Z{taken_on}: {alarm.reason}"
    return alarms
