"""Deletes what was kept for long enough, as `include.retention` says: python -m include.orchestration.housekeeping.

The watchdog that `make up` starts does it once an hour. Where there is none, it is a line for cron. It is no DAG,
because an Airflow task may not touch Airflow's own database.
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
# What a DAG run leaves. Not the DAGs themselves; of their versions Airflow keeps the newest, and those in use.
AIRFLOW_TABLES = (
    *("dag_run", "task_instance", "task_instance_history", "task_reschedule", "xcom", "log", "job", "trigger"),
    *("callback", "deadline", "asset_event", "import_error", "revoked_token", "dag_version"),
)
# Of one transaction: on SQLite everybody else waits for it.
AIRFLOW_ROWS = 500
AIRFLOW_SECONDS = 1_800


def main() -> int:
    """Exit code 1, and an alarm, where a part failed; the others are done all the same. Raises Unreachable."""
    now, engine = time.time(), database.connect(settings().control_url)
    parts: dict[str, Callable[[], object]] = {
        "rows of the control database": lambda: cleanup.forget(engine),
        "logs put aside": lambda: [log.name for log in leftovers.rotate()],
        "logs of Airflow tasks": lambda: leftovers.forget_task_logs(now),
        "temporary files": lambda: leftovers.forget_scratch(now),
        "generations of checkpoints": lambda: leftovers.forget_generations(now),
        "Airflow's metadata": forget_airflow,
    }
    failures = [failure for what, part in parts.items() if (failure := _do(what, part))]
    with database.transaction(engine) as connection:
        if failures:
            incidents.begin(connection, NAME, "NOT CLEANED UP", "; ".join(failures))
        else:
            incidents.end(connection, NAME)
    return 1 if failures else 0


def forget_airflow() -> str:
    """By Airflow's own command. Raises OSError and subprocess.SubprocessError."""
    before = datetime.now(UTC) - timedelta(days=retention.AIRFLOW_DAYS)
    command = [AIRFLOW, "db", "clean", "--clean-before-timestamp", before.isoformat(), "--tables"]
    options = ["--skip-archive", "--yes", "--error-on-cleanup-failure", "--batch-size", str(AIRFLOW_ROWS)]
    done = subprocess.run(
        [*command, ",".join(AIRFLOW_TABLES), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=AIRFLOW_SECONDS,
    )
    if done.returncode:
        raise OSError(f"airflow db clean ended with {done.returncode}: {done.stdout[-500:]}")
    return f"before {before:%Y-%m-%d} deleted"


def _do(what: str, part: Callable[[], object]) -> str | None:
    """Why it failed, in words."""
    try:
        print(f"{what}: {part()}", flush=True)
    except Exception as error:
        print(f"{what}: not cleaned up, next time: {error}", flush=True)
        return f"{what}: {error}"
    return None


if __name__ == "__main__":
    report(lambda: sys.exit(main()))
