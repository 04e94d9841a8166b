"""Sends incidents to people: one JSON POST through the Airflow connection `sluice_alerts`, as chat webhooks accept it.

The connection's host is the URL. Its password, if any, is sent in the header `Authorization: Bearer`, and each entry of
its extra is a header. By hand, or from the watchdog: `python -m include.airflow.supervisor.notify` sends all unsent
incidents, `--trial` a test message.
"""

import argparse
import json
import os
import sys
import time
import urllib.error
import urllib.request
from dataclasses import asdict
from datetime import UTC, datetime
from http.client import HTTPException
from typing import Any

from airflow.sdk import BaseHook, Connection, conf
from airflow.sdk.exceptions import AirflowNotFoundException
from sqlalchemy import Engine

from include import logs, no_redirect
from include.control.flows import alarms, incidents
from include.control.flows.alarms import AlarmKind
from include.control.flows.incidents import Incident, Notice
from include.control.store import database
from include.control.supervision import supervision
from include.errors import SluiceError, Unreachable, UsageError
from include.settings import settings

CONNECTION = "sluice_alerts"
TIMEOUT_SECONDS = 5
UNDELIVERED, NO_CONNECTION = 1, 2


class Refused(Unreachable):
    """The receiver answered, and does not accept the message."""


def notify(notice: Notice) -> None:
    """Send one message. Raises UsageError if the connection is missing or invalid, Unreachable if nobody accepts it."""
    _send(_connection(), notice)


def notify_all(engine: Engine) -> int:
    """Send all unsent messages. Never raises: it logs errors, and returns UNDELIVERED or NO_CONNECTION, else 0.

    A refused message does not delay the others. Without the connection, ended incidents are marked as sent, and open
    ones are sent later.
    """
    try:
        return _tell(engine, incidents.unsent(engine))
    except SluiceError as error:
        logs.error(error)
        return UNDELIVERED


def _tell(engine: Engine, unsent: list[Notice]) -> int:
    if not unsent:
        return 0
    try:
        connection = _connection()
    except UsageError as error:
        logs.error(f"{len(unsent)} messages could not be delivered: {error}")
        for notice in unsent:
            if notice.is_over:
                incidents.mark_sent(engine, notice)
        return NO_CONNECTION
    exit_code = 0
    for notice in unsent:
        try:
            _send(connection, notice)
        except Refused as error:
            # The receiver may accept the other messages.
            logs.error(error)
            exit_code = UNDELIVERED
            continue
        incidents.mark_sent(engine, notice)
        logs.info(f"sent: {'OVER: ' if notice.is_over else ''}{notice.title}")
    return exit_code


def _send(connection: Connection, notice: Notice) -> None:
    request = urllib.request.Request(_url(connection), json.dumps(message(notice)).encode(), method="POST")
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
            f"{notice.first.cause} ({_why(error)}): it is sent again with the next round"
        ) from None


def message(notice: Notice) -> dict[str, Any]:
    """The JSON of a message. number: identifies one that is sent twice, because no receipt arrived."""
    first, platform = notice.first, settings().platform_name
    began_at = min(incident.began_at for incident in notice.incidents)
    runbook = alarms.runbook(first.state)
    command = alarms.command(first.state, first.subject, first.number, first.error, first.driver)
    head = f"[{platform}] {'OVER: ' if notice.is_over else ''}{notice.title}: {first.reason}"
    lines = [head, f"{_span(began_at, notice)}"]
    if len(notice.subjects) > 1:
        lines.append(f"Flows: {', '.join(notice.subjects)}")
    if not notice.is_over:
        lines += [f"Do: {command}", f"Read: {runbook}"]
    link = f"{_airflow_url()}/dags/{supervision.SUPERVISOR}"
    return {
        "text": "\n".join([*lines, f"See: {link}"]),
        "target": first.target,
        **asdict(first),
        "is_over": notice.is_over,
        "began_at": began_at,
        "runbook": runbook,
        "command": command,
        "cause": first.cause,
        "subjects": notice.subjects,
        "platform": platform,
        "link": link,
    }


def _span(began_at: float, notice: Notice) -> str:
    """When it was, in words. An incident that is in no database has no times."""
    times = [began_at, *(incident.ended_at or 0 for incident in notice.incidents if notice.is_over)]
    begin, end = (f"{datetime.fromtimestamp(at or time.time(), UTC):%Y-%m-%d %H:%M}Z" for at in (began_at, max(times)))
    return f"From {begin} to {end}" if notice.is_over else f"Since {begin}"


def _airflow_url() -> str:
    """Where people find Airflow."""
    configured = conf.get("api", "base_url", fallback="")
    return (configured or f"http://127.0.0.1:{settings().airflow_port}").rstrip("/")


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
        reason = "nothing is wrong, somebody tries the connection"
        pending.append(Incident(0, supervision.SUPERVISOR, AlarmKind.TRIAL, reason, is_over=True))
    try:
        for incident in pending:
            notify(Notice((incident,), incident.is_over))
        return 0 if pending else notify_all(database.connect(settings().control_url))
    except UsageError as error:
        logs.error(error)
        return NO_CONNECTION
    except SluiceError as error:
        logs.error(error)
        return UNDELIVERED


if __name__ == "__main__":
    sys.exit(main())
