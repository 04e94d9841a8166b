"""Runs `spark-submit jobs/preview.py` in a child process."""

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
    """The empty home of a platform without a broker."""
    directory = tmp_path / "home"
    directory.mkdir()
    return directory


@pytest.fixture
def preview(home: Path):
    settings = from_environment(
        {
            "SLUICE_HOME": str(home),
            "SLUICE_JARS": os.environ["SLUICE_JARS"],
            "SLUICE_KAFKA": f"127.0.0.1:{free_port()}",
        }
    )
    variables = environment.process_environment(environment.write(settings, java.home()), java.home())

    def run(*arguments: str) -> subprocess.CompletedProcess:
        command = [str(Path(sys.executable).parent / "spark-submit"), str(ROOT / "jobs" / "preview.py")]
        return subprocess.run(
            [*command, *arguments],
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

    def paths() -> list[Path]:
        """All paths except scratch folders of processes, which housekeeping deletes after their end."""
        return sorted(path for path in home.rglob("*") if home / "tmp" not in path.parents)

    paths_before = paths()
    result = preview("--table", "silver.tracker_readings", "--from-file", str(sample))
    assert result.returncode == 0, result.stderr
    first, *_, last = result.stdout.splitlines()
    assert first == f"silver.tracker_readings, made of the rows of {sample}"
    assert last == "Nothing was written."
    assert "  2 break 'plausible heart rate' (quarantine)" in result.stdout
    assert "heart_bpm: 'many' is no INT" in result.stdout
    document = json.loads(preview("--table", "silver.tracker_readings", "--from-file", str(sample), "--json").stdout)
    assert document["previews"][0]["becomes"] == {"quarantine": 2, "kept": 1}
    bronze_result = preview("--table", "bronze.tracker_events")
    assert bronze_result.returncode == 4
    # spark-submit writes the stderr of the job to stdout.
    assert "where no Kafka broker answers: start it (make up)" in bronze_result.stdout
    silver_result = preview("--table", "silver.tracker_readings")
    assert silver_result.returncode == 4
    assert (
        "which is not stored yet: start the flow bronze.tracker_events first, or give rows of it"
        in silver_result.stdout
    )
    assert paths() == paths_before
