"""Deletes what is older than `include.retention` allows: python -m include.orchestration.housekeeping.

The watchdog of `make up` runs it once an hour; elsewhere, cron can. It is no DAG, because an Airflow task may not
access Airflow's metadata database.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from include import retention
from include.control import cleanup, incidents
from include.control.store import database
from include.errors import report
from include.orchestration import leftovers
from include.settings import settings

NAME = "housekeeping"
AIRFLOW = str(Path(sys.executable).parent / "airflow")
# Tables with the history of DAG runs. Of DAG versions, Airflow keeps the newest and those in use.
AIRFLOW_TABLES = (
    *("dag_run", "task_instance", "task_instance_history", "task_reschedule", "xcom", "log", "job", "trigger"),
    *("callback", "deadline", "asset_event", "import_error", "revoked_token", "dag_version"),
)
# Rows per transaction: on SQLite, everybody else waits for it.
AIRFLOW_ROWS = 500
AIRFLOW_SECONDS = 1_800


def main() -> int:
    """Run all parts, even if one fails. A failure opens an alarm and gives exit code 1. Raises Unreachable."""
    now_seconds, engine = time.time(), database.connect(settings().control_url)
    parts: dict[str, Callable[[], object]] = {
        "rows of the control database": lambda: cleanup.forget(engine),
        "logs put aside": lambda: [log.name for log in leftovers.rotate()],
        "logs of Airflow tasks": lambda: leftovers.forget_task_logs(now_seconds),
        "temporary files": lambda: leftovers.forget_scratch(now_seconds),
        "generations of checkpoints": lambda: leftovers.forget_generations(now_seconds),
        "Airflow's metadata": clean_airflow,
    }
    failures = [failure for name, part in parts.items() if (failure := _run_part(name, part))]
    with database.transaction(engine) as connection:
        if failures:
            incidents.begin(connection, NAME, "NOT CLEANED UP", "; ".join(failures))
        else:
            incidents.end(connection, NAME)
    return 1 if failures else 0


def clean_airflow() -> str:
    """Run `airflow db clean`. Raises OSError and subprocess.SubprocessError."""
    before = datetime.now(UTC) - timedelta(days=retention.AIRFLOW_DAYS)
    command = [AIRFLOW, "db", "clean", "--clean-before-timestamp", before.isoformat(), "--tables"]
    options = ["--skip-archive", "--yes", "--error-on-cleanup-failure", "--batch-size", str(AIRFLOW_ROWS)]
    completed = subprocess.run(
        [*command, ",".join(AIRFLOW_TABLES), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=AIRFLOW_SECONDS,
    )
    if completed.returncode:
        raise OSError(f"airflow db clean ended with {completed.returncode}: {completed.stdout[-500:]}")
    return f"before {before:%Y-%m-%d} deleted"


def _run_part(name: str, part: Callable[[], object]) -> str | None:
    """Returns why the part failed, in words; None if it succeeded."""
    try:
        print(f"{name}: {part()}", flush=True)
    except Exception as error:
        print(f"{name}: not cleaned up, next time: {error}", flush=True)
        return f"{name}: {error}"
    return None


if __name__ == "__main__":
    report(lambda: sys.exit(main()))
