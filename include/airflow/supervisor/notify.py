"""Sends incidents to people: one JSON POST through the Airflow connection `sluice_alerts`, as chat webhooks accept it.

The connection's host is the URL. Its password, if any, is sent in the header `Authorization: Bearer`, and each entry of
its extra is a header. By hand, or from the watchdog: `python -m include.airflow.supervisor.notify` sends all unsent
incidents, `--trial` a test message.
"""

import argparse
import json
import os
import sys
import urllib.error
import urllib.request
from dataclasses import asdict
from http.client import HTTPException
from typing import Any

from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowNotFoundException
from sqlalchemy import Engine

from include import logs, no_redirect
from include.control.flows import alarms, incidents
from include.control.flows.alarms import AlarmKind
from include.control.flows.incidents import Incident
from include.control.store import database
from include.control.supervision import supervision
from include.errors import SluiceError, Unreachable, UsageError
from include.settings import settings

CONNECTION = "sluice_alerts"
TIMEOUT_SECONDS = 5
UNDELIVERED, NO_CONNECTION = 1, 2


class Refused(Unreachable):
    """The receiver answered, and does not accept the message."""


def notify(incident: Incident) -> None:
    """Send one message. Raises UsageError if the connection is missing or invalid, Unreachable if nobody accepts it."""
    _send(_connection(), incident)


def notify_all(engine: Engine) -> int:
    """Send all unsent incidents. Never raises: it logs errors, and returns UNDELIVERED or NO_CONNECTION, else 0.

    A refused message does not delay the others. Without the connection, ended incidents are marked as sent, and open
    ones are sent later.
    """
    try:
        return _tell(engine, incidents.unsent(engine))
    except SluiceError as error:
        logs.error(error)
        return UNDELIVERED


def _tell(engine: Engine, unsent: list[Incident]) -> int:
    if not unsent:
        return 0
    try:
        connection = _connection()
    except UsageError as error:
        logs.error(f"{len(unsent)} incidents could not be delivered: {error}")
        for incident in unsent:
            if incident.is_over:
                incidents.mark_sent(engine, incident.number)
        return NO_CONNECTION
    exit_code = 0
    for incident in unsent:
        try:
            _send(connection, incident)
        except Refused as error:
            # The receiver may accept the other messages.
            logs.error(error)
            exit_code = UNDELIVERED
            continue
        incidents.mark_sent(engine, incident.number)
        logs.info(f"sent: {incident.state} {incident.target}")
    return exit_code


def _send(connection: Connection, incident: Incident) -> None:
    request = urllib.request.Request(_url(connection), json.dumps(message(incident)).encode(), method="POST")
    try:
        for name, value in {"Content-Type": "application/json", **_headers(connection)}.items():
            request.add_header(name, value)
        with no_redirect.opener().open(request, timeout=TIMEOUT_SECONDS):
            pass
    except (OSError, HTTPException, ValueError) as error:
        error_class = Refused if isinstance(error, urllib.error.HTTPError) else Unreachable
        # `from None`: the cause may contain a header with the token.
        raise error_class(
            f"the receiver behind the Airflow connection '{CONNECTION}' did not take the message about "
            f"{incident.target} ({_why(error)}): it is sent again with the next round"
        ) from None


def message(incident: Incident) -> dict[str, Any]:
    """The JSON of an incident. number: identifies an incident that is sent twice, because no receipt arrived."""
    title = f"{incident.state} {incident.target}"
    runbook = alarms.runbook(incident.state)
    command = alarms.command(incident.state, incident.subject, incident.number, incident.error)
    remedy = f"Do: {command}\nRead: {runbook}"
    text = f"OVER: {title}: {incident.reason}" if incident.is_over else f"{title}: {incident.reason}\n{remedy}"
    return {"text": text, "target": incident.target, **asdict(incident), "runbook": runbook, "command": command}


def _connection() -> Connection:
    try:
        return BaseHook.get_connection(CONNECTION)
    except AirflowNotFoundException:
        raise UsageError(
            f"there is no Airflow connection '{CONNECTION}': add it (airflow connections add {CONNECTION} "
            f"--conn-type http --conn-host https://... --conn-password TOKEN), or set AIRFLOW_CONN_{CONNECTION.upper()}"
        ) from None
    except Exception as error:
        raise Unreachable(f"Airflow does not show its connection '{CONNECTION}' ({type(error).__name__})") from None


def _url(connection: Connection) -> str:
    """The connection's host if it is a URL; otherwise the URL from the parts of the connection."""
    host = connection.host or ""
    if host.startswith(("http://", "https://")):
        return host
    if connection.conn_type not in ("http", "https") or not host or "://" in host:
        raise UsageError(f"the Airflow connection '{CONNECTION}' has no host that begins with http:// or https://")
    port = f":{connection.port}" if connection.port else ""
    return f"{connection.conn_type}://{host}{port}/{connection.schema or ''}"


def _headers(connection: Connection) -> dict[str, str]:
    token = {"Authorization": f"Bearer {connection.password}"} if connection.password else {}
    return token | {name: str(value) for name, value in connection.extra_dejson.items()}


def _why(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code}"
    return str(error) if isinstance(error, OSError) else type(error).__name__


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m include.airflow.supervisor.notify")
    parser.add_argument("--trial", action="store_true", help="send a message to try the connection")
    parser.add_argument("--stdin", action="store_true", help="send these incidents, a JSON list, instead")
    options = parser.parse_args()
    logs.start()
    # With this, Airflow looks up connections in its database, as for `airflow connections get`.
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"
    pending = [Incident(**fields) for fields in json.load(sys.stdin)] if options.stdin else []
    if options.trial:
        pending.append(
            Incident(
                0, supervision.SUPERVISOR, AlarmKind.TRIAL, "nothing is wrong, somebody tries the connection", True
            )
        )
    try:
        for incident in pending:
            notify(incident)
        return 0 if pending else notify_all(database.connect(settings().control_url))
    except UsageError as error:
        logs.error(error)
        return NO_CONNECTION
    except SluiceError as error:
        logs.error(error)
        return UNDELIVERED


if __name__ == "__main__":
    sys.exit(main())
