"""jobs/backfill.py --replay-quarantine is killed several times beside a running pipeline."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from include.delta.delta_log import DeltaLog
from tests.conftest import ROOT
from tests.support import expected
from tests.support.flows import only_in_full_runs
from tests.support.pipeline import TOPIC, Pipeline, random_events
from tests.support.waiting import sleep_through, wait_until

SILVER, QUARANTINE = "silver.tracker_readings", "quarantine.silver_tracker_readings"
CORRECTED_BPM = 70
KILLS = 6
SEED = int(os.environ.get("SLUICE_SEED", "4"))


def submit(pipeline: Pipeline) -> subprocess.Popen:
    command = [str(Path(sys.executable).parent / "spark-submit"), str(ROOT / "jobs" / "backfill.py")]
    with (pipeline.home / "replay.log").open("ab") as log:
        options = {"cwd": ROOT, "env": pipeline.environment, "stdout": log, "stderr": subprocess.STDOUT}
        return subprocess.Popen([*command, "--replay-quarantine", SILVER], **options)


def kill(job: subprocess.Popen) -> None:
    """Send SIGKILL to the JVM and its Python process."""
    processes = [psutil.Process(job.pid), *psutil.Process(job.pid).children()]
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)
    job.wait(60)
    psutil.wait_procs(processes, timeout=60)


def readings(rows: list[dict]) -> list[tuple]:
    return sorted((row["device_id"], row["time"], row["heart_bpm"]) for row in rows)


@only_in_full_runs
def test_a_replay_that_is_killed_again_and_again_puts_each_mended_row_back_once(pipeline: Pipeline, spark, capsys):
    rng = random.Random(SEED)
    pipeline.produce(random_events(1))
    pipeline.run_once()
    path = pipeline.home / "lake" / QUARANTINE.replace(".", "/")
    spark.sql(f"UPDATE delta.`{path}` SET heart_bpm = {CORRECTED_BPM} WHERE device_id IS NOT NULL AND time IS NOT NULL")
    corrected_rows = [row for row in pipeline.rows(QUARANTINE) if row["heart_bpm"] == CORRECTED_BPM]
    assert corrected_rows
    pipeline.submit()
    pipeline.produce(random_events(2))
    killed_at_work = 0
    for number in range(KILLS):
        job, commits_before = submit(pipeline), replay_commits(pipeline)
        if number % 3 < 2:
            wait_until(
                lambda job=job, commits_before=commits_before: (
                    job.poll() is not None or replay_commits(pipeline) > commits_before
                ),
                180,
            )
        sleep_through(rng.uniform(0, 1))
        if job.poll() is None:
            killed_at_work += replay_commits(pipeline) > commits_before
            kill(job)
    last_job = submit(pipeline)
    wait_until(lambda: last_job.poll() is not None, 180)
    assert last_job.returncode == 0, (pipeline.home / "replay.log").read_text()[-3000:]
    silver, quarantine = expected.silver_and_quarantine(expected.messages(pipeline.servers, TOPIC))
    replayed = {(row["device_id"], row["time"]): row for row in corrected_rows}
    wait_until(lambda: pipeline.count(SILVER) == len(replayed | silver), 120, pipeline.log.read_text)
    assert readings(pipeline.rows(SILVER)) == readings([*(replayed | silver).values()])
    replayed_positions = {(row["partition"], row["offset"]) for row in corrected_rows}
    remaining = [(row["partition"], row["offset"]) for row in pipeline.rows(QUARANTINE)]
    assert sorted(remaining) == sorted(quarantine - replayed_positions)
    with capsys.disabled():
        print(f"\n{KILLS} kills (seed {SEED}), {killed_at_work} between commits: {len(corrected_rows)} rows moved once")


def replay_commits(pipeline: Pipeline) -> int:
    """The number of commits of both tables with a replay number in their metadata."""
    logs = [DeltaLog(pipeline.home / "lake" / name.replace(".", "/")) for name in (SILVER, QUARANTINE)]
    return sum("replay" in log.commit(version).metadata for log in logs for version in log.versions)
