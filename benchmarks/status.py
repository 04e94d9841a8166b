"""What a look at every flow costs: python -m benchmarks.status [--flows 20], in a home of its own, without a broker.

Runs `python -m include.ledger status` in its own process, while no flow runs. Half of the flows read topics, half read
tables with 1,000 commits, and each flow is 300 commits behind. Measures first without a broker, then with a broker that
accepts connections but never answers. Reports wall and CPU seconds, the medians of several runs.
"""

import argparse
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from include.errors import report
from include.lake import locations
from include.settings import ROOT, settings
from include.spec import Delta, Flow, Kafka, Table

COMMITS, UNREAD = 1_000, 300
RUNS = 5
SCHEMA = {"type": "struct", "fields": [{"name": "offset", "type": "long", "nullable": True, "metadata": {}}]}
METADATA = {"id": "x", "format": {"provider": "parquet", "options": {}}, "schemaString": json.dumps(SCHEMA)}
_FIRST_ACTIONS = [
    {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
    {"metaData": {**METADATA, "partitionColumns": [], "configuration": {}}},
]
ABSENT = "127.0.0.1:1"
# The command line over the tables of this benchmark.
COMMAND = """
import sys
from benchmarks.status import tables
from include import catalog
from include.catalog import Catalog
from include.cli.main import main
benchmark_tables = Catalog({table.name: table for table in tables(int(sys.argv.pop()))})
catalog.load = lambda: benchmark_tables
main()
"""


def tables(flows: int) -> list[Table]:
    all_tables = []
    for number in range(flows // 2):
        bronze = Flow(name=f"bronze.t{number}", comment="", source=Kafka(f"topic-{number}"))
        all_tables += [bronze, Flow(name=f"silver.t{number}", comment="", source=Delta(bronze.name), fresh_minutes=5)]
    return all_tables


def store(flow: Table, commits: int = COMMITS, unread: int = UNREAD) -> None:
    """Write a table with a commit every two seconds until now, and a checkpoint that is behind."""
    log = locations.table_path(flow.name) / "_delta_log"
    log.mkdir(parents=True)
    for version in range(commits):
        at_ms = int((time.time() - 2 * (commits - version)) * 1000)
        end = _offset(flow, version - unread)
        user_metadata = {"flow": flow.flow, "generation": 1, "batch": version, "epoch": 1, "source_to": end}
        info = {"timestamp": at_ms, "operation": "WRITE", "userMetadata": json.dumps(user_metadata)}
        statistics = {"numRecords": 200, "minValues": {"offset": version}, "maxValues": {"offset": version + 200}}
        file = {"path": f"{version}.parquet", "size": 20_000, "modificationTime": at_ms, "dataChange": True}
        actions = [{"commitInfo": info}, *({"add": {**file, "stats": json.dumps(statistics)}} for _ in range(3))]
        actions += _FIRST_ACTIONS if version == 0 else []
        lines = "\n".join(json.dumps(action, separators=(",", ":")) for action in actions)
        (log / f"{version:020}.json").write_text(lines)
    checkpoint = locations.checkpoints(flow.flow) / "1"
    for name, text in (
        ("metadata", '{"id":"x"}'),
        ("offsets/7", f"v1\n{{}}\n{json.dumps(_offset(flow, commits - unread))}"),
        ("commits/7", "v1\n{}"),
    ):
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text(text)


def _offset(flow: Table, version: int) -> dict[str, object]:
    if isinstance(flow.source, Kafka):
        return {flow.source.names[0]: {"0": max(0, version) * 200}}
    position = {"reservoirId": "x", "reservoirVersion": max(0, version), "index": -1, "isStartingVersion": False}
    return {"sourceVersion": 1, **position}


def measure(flows: int, broker: str) -> tuple[float, float]:
    """The medians of wall and CPU seconds of the command."""
    runs = [_run(flows, {**os.environ, "SLUICE_KAFKA": broker}) for _ in range(RUNS)]
    wall, cpu = (statistics.median(values) for values in zip(*runs, strict=True))
    return wall, cpu


def _run(flows: int, environment: dict[str, str]) -> tuple[float, float]:
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [sys.executable, "-c", COMMAND, "status", str(flows)]
    result = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # The output must have a line for each flow.
    assert sum(line.startswith(("bronze.t", "silver.t")) for line in result.stdout.splitlines()) >= flows
    return time.monotonic() - begin, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.status", description=__doc__.splitlines()[0])
    parser.add_argument("--flows", type=int, default=20)
    flows = parser.parse_args().flows
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as home, socket.create_server(("127.0.0.1", 0)) as silent:
        settings.cache_clear()
        os.environ.update({"SLUICE_HOME": home, "SLUICE_LANDING": ""})
        os.environ["SLUICE_CONTROL_URL"] = f"sqlite:///{Path(home) / 'control.db'}"
        for table in tables(flows):
            store(table)
        _run(flows, {**os.environ, "SLUICE_KAFKA": ABSENT})
        for case, broker in (
            ("no broker listens", ABSENT),
            ("one listens, and never answers", f"127.0.0.1:{silent.getsockname()[1]}"),
        ):
            wall, cpu = measure(flows, broker)
            print(f"status of {flows} flows, {UNREAD} commits behind; {case}: {wall:.2f} s, {cpu:.2f} CPU seconds")


if __name__ == "__main__":
    report(main)
