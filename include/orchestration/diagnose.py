"""Why the supervisor is not at work, as far as Airflow's command line and its health page tell."""

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

# What an incident calls it when it is away.
DATABASE = "control database"
TIMEOUT_SECONDS = 60


def supervisor() -> tuple[str, str]:
    """State and reason; of several the first thing to mend gives the state."""
    found = [one for one in (_paused(), _broken_file(), _dead()) if one]
    found = found or [("LATE", f"Airflow is well, and yet no run of '{supervision.NAME}' gets through: read its log")]
    return found[0][0], "; ".join(reason for _, reason in found)


def _paused() -> tuple[str, str] | None:
    details = _airflow("dags", "details", supervision.NAME)
    is_paused = bool(details) and details[0].get("is_paused") in (True, "True")
    return ("PAUSED", f"the DAG '{supervision.NAME}' is paused") if is_paused else None


def _broken_file() -> tuple[str, str] | None:
    errors = _airflow("dags", "list-import-errors")
    broken = [f"{one['filepath']} ({one['error'].strip().splitlines()[-1]})" for one in errors if one.get("error")]
    return ("UNLOADABLE", f"Airflow cannot load {', '.join(broken)}") if broken else None


def _dead() -> tuple[str, str] | None:
    url = os.environ.get("AIRFLOW__API__BASE_URL") or f"http://127.0.0.1:{settings().airflow_port}"
    # A proxy of the environment must not get what is meant for this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url.rstrip('/')}/api/v2/monitor/health", timeout=10) as answer:
            health = json.load(answer)
    except (OSError, ValueError):
        return "DEAD", f"Airflow's API server does not answer at {url}"
    sick = [name for name in ("metadatabase", "scheduler") if health[name]["status"] != "healthy"]
    return ("DEAD", f"Airflow's {' and '.join(sick)} shows no sign of life") if sick else None


def _airflow(*arguments: str) -> list[dict[str, Any]]:
    """What the command prints as JSON; nothing where it fails, as with its database away."""
    command = [str(Path(sys.executable).parent / "airflow"), *arguments, "-o", "json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return []
    # Airflow's own warnings stand there too.
    documents = [line for line in done.stdout.splitlines() if line.startswith("[{")]
    return list(json.loads(documents[-1])) if documents else []
