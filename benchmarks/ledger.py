"""What the ledger costs: python -m benchmarks.ledger [--small], over a table made here, without Spark and broker.

`inspect` of a table with 10,000 commits in its log and 100,000 batches in its checkpoint, in a process of its own:
seconds and the greatest memory. Spark would have purged most of these checkpoint files; here none is.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from include.errors import report

TABLE = "silver.tracker_readings"
CONF = {f"spark.sql.streaming.setting{number}": "a value of some length" for number in range(15)}
# Runs the command line, then prints its maximum memory in MB.
MEASURED = """
import resource, sys
from include.cli.main import main
main()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, file=sys.stderr)
"""


def offset(batch: int) -> dict[str, object]:
    """The end offset of a batch."""
    position = {"reservoirId": "ff761c76-5b1e-40cf-b382-d00c74783cde", "reservoirVersion": batch + 1, "index": -1}
    return {"sourceVersion": 1, **position, "isStartingVersion": False}


def commit(version: int, batch: int) -> str:
    """The JSON lines of a commit, as the engine writes them."""
    row_counts = {"read": 1_000, "kept": 990, "quarantined": 10, "dropped": 0, "broke": {"plausible heart rate": 10}}
    user_metadata = {
        "flow": TABLE,
        "generation": 1,
        "batch": batch,
        "epoch": 3,
        "source": {"table": "bronze.tracker_events"},
    }
    user_metadata |= {"source_from": offset(batch - 1), "source_to": offset(batch), "rows": row_counts, "newest": None}
    metrics = {"numFiles": "1", "numOutputRows": "990", "numOutputBytes": "40000"}
    commit_info = {"timestamp": 1_795_000_000_000 + version * 2_000, "operation": "WRITE", "readVersion": version - 1}
    commit_info |= {
        "operationParameters": {"mode": "Append"},
        "operationMetrics": metrics,
        "userMetadata": json.dumps(user_metadata),
    }
    columns = {f"column{number}": number for number in range(10)}
    stats = json.dumps({"numRecords": 990, "minValues": columns, "maxValues": columns, "nullCount": columns})
    path = f"part-00000-{version:036}-c000.zstd.parquet"
    add_file = {
        "path": path,
        "partitionValues": {},
        "size": 40_000,
        "modificationTime": commit_info["timestamp"],
        "stats": stats,
    }
    actions = [{"commitInfo": commit_info}, {"txn": {"appId": f"{TABLE}/1", "version": batch}}, {"add": add_file}]
    return "\n".join(json.dumps(action, separators=(",", ":")) for action in actions)


def make(home: Path, commits: int, batches: int) -> None:
    """Write a table and a checkpoint. Only the newest `commits` batches have a commit in the log."""
    log = home / "lake" / TABLE.replace(".", "/") / "_delta_log"
    checkpoint = home / "checkpoints" / TABLE / "1"
    for directory in (log, checkpoint / "offsets", checkpoint / "commits"):
        directory.mkdir(parents=True)
    for batch in range(batches):
        metadata = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1_795_000_000_000 + batch, "conf": CONF})
        (checkpoint / "offsets" / str(batch)).write_text(f"v1\n{metadata}\n{json.dumps(offset(batch))}")
        (checkpoint / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        if batch >= batches - commits:
            (log / f"{batch + 1:020}.json").write_text(commit(batch + 1, batch))
    (checkpoint / "metadata").write_text('{"id":"7fd1aba9-3243-41b9-a41d-47be6e7875ad"}')
    owner = {"flow": TABLE, "source": {"table": "bronze.tracker_events"}, "first": 0, "definitions": []}
    (checkpoint / "owner.json").write_text(json.dumps(owner))


def measure(home: Path, *arguments: str) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds and memory (MB) of a run."""
    begin, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "SLUICE_HOME": str(home)}
    environment.pop("SLUICE_CONTROL_URL", None)
    command = [sys.executable, "-c", MEASURED, *arguments]
    process = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - begin, cpu_seconds, float(process.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ledger", description=__doc__)
    parser.add_argument("--small", action="store_true", help="a tenth of it")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    arguments = parser.parse_args()
    commits, batches = (1_000, 10_000) if arguments.small else (10_000, 100_000)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as directory:
        make(Path(directory), commits, batches)
        runs = [measure(Path(directory), "inspect", TABLE) for _ in range(arguments.rounds)]
    seconds, spent, megabytes = (statistics.median(values) for values in zip(*runs, strict=True))
    print(
        f"inspect of {commits:,} commits and {batches:,} batches: {seconds:.2f} s, {spent:.2f} s of CPU, "
        f"{megabytes:.0f} MB (medians of {len(runs)})"
    )


if __name__ == "__main__":
    report(main)
