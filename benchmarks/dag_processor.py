"""CPU time of Airflow's DAG processor for a project of many tables: python -m benchmarks.dag_processor [--tables 300]

Generates the tables in a copy of the repository, a third of them in each layer, and starts the processor there.
"""

import argparse
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import psutil

from include.settings import ROOT

SOURCES = {
    "bronze": 'Table(name="bronze.t{n}", source=Kafka("topic{n}"), comment="events")',
    "silver": 'Table(name="silver.t{n}", source=Delta("bronze.t{n}"), comment="rows", time_column="at", '
    'schema="at TIMESTAMP, key STRING", '
    'transform="SELECT timestamp AS at, CAST(key AS STRING) AS key FROM source")',
    "gold": 'View(name="gold.t{n}", source=Delta("silver.t{n}"), comment="counts", schedule="{minute} 3 * * *", '
    'schema="key STRING, rows BIGINT", transform="SELECT key, count(*) AS rows FROM source GROUP BY key")',
}
COPIED = ("dags", "include", "plugins")
# The start is over once no DAG has been added for this time.
SETTLED_SECONDS = 45
MOST_START_SECONDS = 600


def generate(root: Path, count: int) -> None:
    """A copy of the repository with this number of tables and without the examples."""
    for folder in COPIED:
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for layer, declaration in SOURCES.items():
        folder = root / "include" / "tables" / layer
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(count // len(SOURCES)):
            table = declaration.format(n=number, minute=number % 60)
            text = f"from include.spec import Delta, Kafka, Table, View\n\nTABLE = {table}\n"
            (folder / f"t{number}.py").write_text(text)


def environment(root: Path) -> dict[str, str]:
    home = root / "home"
    options = {
        "CORE__DAGS_FOLDER": root / "dags",
        "CORE__PLUGINS_FOLDER": root / "plugins",
        "CORE__LOAD_EXAMPLES": False,
        "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "DAG_PROCESSOR__PARSING_PROCESSES": 1,
        "DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": 150,
        "CORE__DAGBAG_IMPORT_TIMEOUT": 120,
        "LOGGING__BASE_LOG_FOLDER": home / "logs",
        "LOGGING__DAG_PROCESSOR_CHILD_PROCESS_LOG_DIRECTORY": home / "logs",
    }
    variables = {f"AIRFLOW__{name}": str(value) for name, value in options.items()}
    own = {"PYTHONPATH": str(root), "SLUICE_HOME": str(home), "AIRFLOW_HOME": str(home), "SLUICE_EXAMPLES": "off"}
    return {**os.environ, **variables, **own}


def cpu_seconds(process: psutil.Process) -> float:
    times = [process.cpu_times()]
    for child in process.children(recursive=True):
        try:
            times.append(child.cpu_times())
        except psutil.Error:
            # Its time is in that of its parent.
            continue
    return sum(time_.user + time_.system + time_.children_user + time_.children_system for time_ in times)


def count_dags(root: Path) -> int:
    with closing(sqlite3.connect(root / "home" / "airflow.db")) as connection:
        return int(connection.execute("SELECT count(*) FROM serialized_dag").fetchone()[0])


def wait_until_settled(root: Path) -> int:
    """Returns the number of DAGs."""
    began_at = changed_at = time.monotonic()
    count = 0
    while not count or time.monotonic() - changed_at < SETTLED_SECONDS:
        if time.monotonic() - began_at > MOST_START_SECONDS:
            raise SystemExit(f"the processor has not parsed all files in {MOST_START_SECONDS} s")
        time.sleep(1)
        if (now := count_dags(root)) != count:
            count, changed_at = now, time.monotonic()
    return count


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dag_processor")
    parser.add_argument("--tables", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=120, help="for how long it is measured")
    options = parser.parse_args()
    airflow = str(Path(sys.executable).parent / "airflow")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        generate(root, options.tables)
        variables = environment(root)
        (root / "home").mkdir()
        subprocess.run([airflow, "db", "migrate"], env=variables, check=True, capture_output=True)
        command = [airflow, "dag-processor"]
        processor = subprocess.Popen(
            command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            process = psutil.Process(processor.pid)
            count = wait_until_settled(root)
            first, began_at = cpu_seconds(process), time.monotonic()
            time.sleep(options.seconds)
            minutes = (time.monotonic() - began_at) / 60
            each = (cpu_seconds(process) - first) / minutes
            print(
                f"{options.tables} tables, {count} DAGs: {each:.2f} CPU-s a minute, {first:.1f} until all were parsed"
            )
        finally:
            os.killpg(processor.pid, signal.SIGTERM)
            processor.wait(30)


if __name__ == "__main__":
    main()
