"""Finds why the supervisor is silent, from Airflow's command line and its health page."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from include.control.supervision import supervision
from include.settings import settings

# The target of the incident of a control database that does not answer.
DATABASE = "control database"
TIMEOUT_SECONDS = 60


def supervisor() -> tuple[str, str]:
    """State and reason. Of several findings, the first one to correct gives the state."""
    findings = [finding for finding in (_find_pause(), _find_broken_file(), _find_dead_component()) if finding]
    findings = findings or [
        ("LATE", f"Airflow is well, and yet no run of '{supervision.SUPERVISOR}' gets through: read its log")
    ]
    return findings[0][0], "; ".join(reason for _, reason in findings)


def _find_pause() -> tuple[str, str] | None:
    details = _airflow("dags", "details", supervision.SUPERVISOR)
    is_paused = bool(details) and details[0].get("is_paused") in (True, "True")
    return ("PAUSED", f"the DAG '{supervision.SUPERVISOR}' is paused") if is_paused else None


def _find_broken_file() -> tuple[str, str] | None:
    errors = _airflow("dags", "list-import-errors")
    broken = [
        f"{error['filepath']} ({error['error'].strip().splitlines()[-1]})" for error in errors if error.get("error")
    ]
    return ("UNLOADABLE", f"Airflow cannot load {', '.join(broken)}") if broken else None


def _find_dead_component() -> tuple[str, str] | None:
    url = os.environ.get("AIRFLOW__API__BASE_URL") or f"http://127.0.0.1:{settings().airflow_port}"
    # Requests to this machine bypass the proxy of the environment.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url.rstrip('/')}/api/v2/monitor/health", timeout=10) as response:
            health = json.load(response)
    except (OSError, ValueError):
        return "DEAD", f"Airflow's API server does not answer at {url}"
    sick = [name for name in ("metadatabase", "scheduler") if health[name]["status"] != "healthy"]
    return ("DEAD", f"Airflow's {' and '.join(sick)} shows no sign of life") if sick else None


def _airflow(*arguments: str) -> list[dict[str, Any]]:
    """The JSON output of an Airflow command; empty if it fails, such as without its database."""
    command = [str(Path(sys.executable).parent / "airflow"), *arguments, "-o", "json"]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return []
    # The output also contains Airflow's warnings.
    documents = [line for line in completed.stdout.splitlines() if line.startswith("[{")]
    return list(json.loads(documents[-1])) if documents else []
