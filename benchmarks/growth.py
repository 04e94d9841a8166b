"""What a year leaves beside the tables: python -m benchmarks.growth [--small], without Spark and broker.

Simulates the clock: the control database of 300 flows after a year with a daily cleanup; Airflow's database after three
times as many supervisor runs as are kept; the maximum size of all files with a size limit. The sum must stay below
1 GB. Takes minutes.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, MetaData, create_engine, func, insert, select

from include import retention
from include.airflow.supervisor import housekeeping
from include.control import cleanup, schedule
from include.control.cleanup import DAY_SECONDS
from include.control.store import database
from include.control.store.job_schema import jobs
from include.control.store.schema import audits, incidents, pauses
from include.errors import report
from include.settings import ROOT, settings

MOST_BYTES = 1_000_000_000
FLOWS = 300
# The processes of `make up` and ten drivers, each with a current and an older log.
LOGS = 2 * (10 + 8)
WORDS = "it reads what its source holds now, then stops; docs/runbooks/broken.md says what to do next " * 2


def insert_day(connection: Connection, at: float) -> None:
    """Insert the records of a day: each flow has an hourly schedule, and each table has an hourly window."""
    audit = {"action": "catch up", "reason": WORDS, "result": WORDS, "at": at}
    rows = [{**audit, "who": schedule.REQUESTER, "target": f"silver.t{flow}"} for flow in range(FLOWS)]
    connection.execute(insert(audits), rows * 24 + [{**rows[0], "who": "ada"}] * 50)
    first = (connection.execute(select(func.max(jobs.c.number))).scalar_one() or 0) + 1
    window = {"kind": "window", "root": 1, "who": "maintain", "reason": WORDS, "message": ""}
    window |= {"planned_at": at, "state_at": at, "ended_at": at}
    windows = [
        {**window, "number": first + number, "target": f"silver.t{number % FLOWS}", "state": "skipped"}
        for number in range(25 * FLOWS)
    ]
    connection.execute(insert(jobs), [*windows[FLOWS:], *({**row, "state": "done"} for row in windows[:FLOWS])])
    pause = {"target": "t", "epoch": 1, "began_at": at, "ended_at": at + 1}
    connection.execute(insert(pauses), [{**pause, "flow": f"silver.t{flow}"} for flow in range(FLOWS)] * 5)
    incident = {"target": "t", "state": "STUCK", "reason": WORDS, "error": "", "began_at": at, "ended_at": at + 60}
    connection.execute(insert(incidents), [incident] * 50)


def control(days: int) -> int:
    """The size of the control database after this number of days, in bytes."""
    engine, begin = database.connect(settings().control_url), time.time()
    for day in range(days):
        with database.transaction(engine) as connection:
            insert_day(connection, begin + day * DAY_SECONDS)
        cleanup.forget(engine, begin + (day + 1) * DAY_SECONDS)
    return size(settings().home, "control.db*")


def size(folder: Path, pattern: str) -> int:
    return sum(file.stat().st_size for file in folder.glob(pattern))


def run_rows(template: dict[str, dict[str, Any]], first: int, runs: int) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The rows of supervisor runs, a minute apart. All are older than the retention."""
    newest = datetime.now(UTC) - timedelta(days=retention.AIRFLOW_DAYS, hours=1)
    for table, row in template.items():
        rows = []
        for number in range(runs):
            at = newest - timedelta(minutes=number)
            times = dict.fromkeys(("start_date", "end_date", "run_after", "timestamp", "dttm", "logical_date"), at)
            ids = {"id": first + number, "run_id": f"scheduled__{first + number}", "dag_run_id": first + number}
            ids |= {"ti_id": f"{first + number:032x}"}
            if table == "task_instance":
                ids["id"] = ids["ti_id"]
            rows.append({name: {**times, **ids}.get(name, value) for name, value in row.items()})
        yield table, rows


def airflow(runs: int) -> int:
    """The size of Airflow's database after three rounds of supervisor runs, each with a cleanup, in bytes."""
    file = Path(os.environ["AIRFLOW_HOME"]) / "airflow.db"
    for arguments in (["db", "migrate"], ["dags", "reserialize"]):
        subprocess.run([housekeeping.AIRFLOW, *arguments], check=True, capture_output=True)
    engine, metadata = create_engine(f"sqlite:///{file}"), MetaData()
    metadata.reflect(engine)
    for round_number in range(3):
        with engine.begin() as connection:
            for table, rows in run_rows(template_of(metadata, connection), round_number * runs + 1, runs):
                connection.execute(insert(metadata.tables[table]), rows)
        housekeeping.clean_airflow()
    return size(file.parent, "airflow.db*")


def template_of(metadata: MetaData, connection: Connection) -> dict[str, dict[str, Any]]:
    """A row for each table of a DAG run. Missing columns are NULL or have the default of the database."""
    version = metadata.tables["dag_version"]
    dag_version = connection.execute(version.select().where(version.c.dag_id == "supervise")).mappings().first()
    assert dag_version
    task_key = {"dag_id": "supervise", "run_id": "", "task_id": "reconcile", "map_index": -1}
    outcome = {"start_date": None, "end_date": None, "state": "success", "dag_version_id": dag_version["id"]}
    run = {"id": 0, "dag_id": "supervise", "run_id": "", "run_type": "scheduled", "run_after": None}
    run |= {"logical_date": None, "start_date": None, "end_date": None, "state": "success", "clear_number": 0}
    task = {
        "id": "",
        **task_key,
        **outcome,
        "try_number": 1,
        "pool": "default_pool",
        "pool_slots": 1,
        "operator": WORDS,
    }
    result = json.dumps([{"flow": "silver.t", "reason": WORDS}])
    return {
        "dag_run": {**run, "created_dag_version_id": dag_version["id"]},
        "task_instance": task,
        "xcom": {**task_key, "dag_run_id": 0, "key": "return_value", "value": result, "timestamp": None},
        "log": {"dttm": None, **task_key, "event": "success", "extra": WORDS},
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="to see that it works: ten days, and as many runs an hour")
    small = parser.parse_args().small
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as home:
        os.environ |= {"SLUICE_HOME": home, "SLUICE_CONTROL_URL": f"sqlite:///{home}/control.db", "AIRFLOW_HOME": home}
        os.environ |= {"AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
        os.environ |= {"AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"), "PYTHONPATH": str(ROOT)}
        settings.cache_clear()
        parts = {
            "control database": control(10 if small else 365),
            "Airflow's database": airflow(240 if small else 1_440 * (retention.AIRFLOW_DAYS + 1)),
            "logs of tasks": retention.TASK_LOG_BYTES,
            "logs of processes": 0 if small else LOGS * retention.LOG_BYTES // 4,
            "lineage": 2 * retention.LINEAGE_BYTES,
        }
    for part, count in parts.items():
        print(f"{part}: {count / 1e6:,.0f} MB")
    total = sum(parts.values())
    print(f"a year beside the tables: {total / 1e6:,.0f} MB")
    assert total < MOST_BYTES


if __name__ == "__main__":
    report(main)
