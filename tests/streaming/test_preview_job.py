"""`spark-submit jobs/preview.py`, as somebody types it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from include.local import environment, java
from include.settings import from_environment
from tests.conftest import ROOT, free_port
from tests.support.flows import only_in_full_runs

READING = {"device_id": "a", "time": "2026-03-01T12:00:00Z", "heart_bpm": 60}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Of a platform that has written nothing yet, and has no broker."""
    made = tmp_path / "home"
    made.mkdir()
    return made


@pytest.fixture
def preview(home: Path):
    where = from_environment(
        {
            "SLUICE_HOME": str(home),
            "SLUICE_JARS": os.environ["SLUICE_JARS"],
            "SLUICE_KAFKA": f"127.0.0.1:{free_port()}",
        }
    )
    variables = environment.process_environment(environment.write(where, java.home()), java.home())

    def run(*arguments: str) -> subprocess.CompletedProcess:
        submit = [str(Path(sys.executable).parent / "spark-submit"), str(ROOT / "jobs" / "preview.py")]
        return subprocess.run(
            [*submit, *arguments],
            cwd=ROOT,
            env={**variables, "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1"},
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


@only_in_full_runs
def test_the_job_shows_a_sample_without_a_platform_and_leaves_its_home_as_it_was(preview, home: Path, tmp_path: Path):
    sample = tmp_path / "sample.json"
    sample.write_text("\n".join([json.dumps(READING), json.dumps({**READING, "heart_bpm": "many"}), "garbage"]))
    before = sorted(home.rglob("*"))
    done = preview("--table", "silver.tracker_readings", "--from-file", str(sample))
    assert done.returncode == 0, done.stderr
    first, *_, last = done.stdout.splitlines()
    assert first == f"silver.tracker_readings, made of the rows of {sample}"
    assert last == "Nothing was written."
    assert "  2 break 'plausible heart rate' (quarantine)" in done.stdout
    assert "heart_bpm: 'many' is no INT" in done.stdout
    document = json.loads(preview("--table", "silver.tracker_readings", "--from-file", str(sample), "--json").stdout)
    assert document["previews"][0]["becomes"] == {"quarantine": 2, "kept": 1}
    away = preview("--table", "bronze.tracker_events")
    assert away.returncode == 4
    # spark-submit puts there what the job writes to stderr.
    assert "where no Kafka broker answers: start it (make up)" in away.stdout
    unread = preview("--table", "silver.tracker_readings")
    assert unread.returncode == 4
    assert "which is not stored yet: start the flow bronze.tracker_events first, or give rows of it" in unread.stdout
    assert sorted(home.rglob("*")) == before
