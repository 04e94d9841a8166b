"""jobs/backfill.py --replay-quarantine, killed again and again beside a running pipeline."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from include.readers.delta_log import DeltaLog
from tests.conftest import ROOT
from tests.support import expected
from tests.support.flows import FULL
from tests.support.pipeline import TOPIC, Pipeline, part
from tests.support.waiting import sleep_through, wait_until

SILVER, QUARANTINE = "silver.tracker_readings", "quarantine.silver_tracker_readings"
MENDED_BPM = 70
KILLS = 6 if FULL else 1
SEED = int(os.environ.get("SLUICE_SEED", "4"))


def submit(pipeline: Pipeline) -> subprocess.Popen:
    command = [str(Path(sys.executable).parent / "spark-submit"), str(ROOT / "jobs" / "backfill.py")]
    with (pipeline.home / "replay.log").open("ab") as log:
        options = {"cwd": ROOT, "env": pipeline.environment, "stdout": log, "stderr": subprocess.STDOUT}
        return subprocess.Popen([*command, "--replay-quarantine", SILVER], **options)


def kill(job: subprocess.Popen) -> None:
    """SIGKILL to the JVM and to its Python."""
    halves = [psutil.Process(job.pid), *psutil.Process(job.pid).children()]
    for half in halves:
        os.kill(half.pid, signal.SIGKILL)
    job.wait(60)
    psutil.wait_procs(halves, timeout=60)


def readings(rows: list[dict]) -> list[tuple]:
    return sorted((row["device_id"], row["time"], row["heart_bpm"]) for row in rows)


def test_a_replay_that_is_killed_again_and_again_puts_each_mended_row_back_once(pipeline: Pipeline, spark, capsys):
    dice = random.Random(SEED)
    pipeline.produce(part(1))
    assert pipeline.run("--once").returncode == 0
    path = pipeline.home / "lake" / QUARANTINE.replace(".", "/")
    spark.sql(f"UPDATE delta.`{path}` SET heart_bpm = {MENDED_BPM} WHERE device_id IS NOT NULL AND time IS NOT NULL")
    mended = [row for row in pipeline.rows(QUARANTINE) if row["heart_bpm"] == MENDED_BPM]
    assert mended
    pipeline.submit()
    pipeline.produce(part(2))
    killed_at_work = 0
    for number in range(KILLS):
        job, seen = submit(pipeline), replay_commits(pipeline)
        if number % 3 < 2:
            wait_until(lambda job=job, seen=seen: job.poll() is not None or replay_commits(pipeline) > seen, 180)
        sleep_through(dice.uniform(0, 1))
        if job.poll() is None:
            killed_at_work += replay_commits(pipeline) > seen
            kill(job)
    last = submit(pipeline)
    wait_until(lambda: last.poll() is not None, 180)
    assert last.returncode == 0, (pipeline.home / "replay.log").read_text()[-3000:]
    silver, quarantine = expected.silver_and_quarantine(expected.messages(pipeline.servers, TOPIC))
    again = {(row["device_id"], row["time"]): row for row in mended}
    wait_until(lambda: pipeline.count(SILVER) == len(again | silver), 120, pipeline.log.read_text)
    assert readings(pipeline.rows(SILVER)) == readings([*(again | silver).values()])
    put_back = {(row["partition"], row["offset"]) for row in mended}
    left = [(row["partition"], row["offset"]) for row in pipeline.rows(QUARANTINE)]
    assert sorted(left) == sorted(quarantine - put_back)
    with capsys.disabled():
        print(f"\n{KILLS} kills (seed {SEED}), {killed_at_work} between commits: {len(mended)} rows put back once")


def replay_commits(pipeline: Pipeline) -> int:
    """How many commits of the two tables carry a replay's number."""
    logs = [DeltaLog(pipeline.home / "lake" / name.replace(".", "/")) for name in (SILVER, QUARANTINE)]
    return sum("replay" in log.commit(version).metadata for log in logs for version in log.versions)
