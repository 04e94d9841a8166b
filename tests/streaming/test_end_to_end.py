"""Compares the tables from Kafka to gold with plain Python."""

import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT
from tests.support.flows import FULL
from tests.support.pipeline import Pipeline, pipeline_without_broker, random_events


def test_gold_is_exactly_what_plain_python_makes_of_the_same_events(pipeline: Pipeline):
    events = random_events(1)
    assert {event.kind for event in events} >= {"malformed", "empty", "tombstone", "wrong type", "late", "repeated"}
    pipeline.produce(events)
    printed = pipeline.run_once()
    assert "sluice: gold.heart_rate_by_model has read its source to the end, batches: 1\n" in printed
    pipeline.assert_nothing_lost_or_doubled()
    if FULL:
        pipeline.produce(random_events(2))
        pipeline.run_once()
        pipeline.assert_nothing_lost_or_doubled()
    pipeline.assert_the_ledger_agrees()


def run_without_spark(pipeline: Pipeline, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "jobs" / "stream.py"), *arguments]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.run(command, cwd=ROOT, env=pipeline.environment, **output)


def test_a_wrong_call_is_one_sentence_and_an_exit_code(tmp_path: Path):
    pipeline = pipeline_without_broker(tmp_path, "127.0.0.1:1", {})
    # Both leave before Java starts, so spark-submit is not needed.
    unknown_flow = run_without_spark(pipeline, "--flow", "silver.tracker_reading")
    assert unknown_flow.returncode == 2
    sentence = "sluice: there is no flow 'silver.tracker_reading': did you mean 'silver.tracker_readings'?"
    assert sentence in unknown_flow.stdout.splitlines()
    unknown_option = run_without_spark(pipeline, "--twice")
    assert unknown_option.returncode == 2
    assert "stream.py: error: unrecognized arguments: --twice" in unknown_option.stdout.splitlines()
    unreachable_broker = pipeline.run("--once", "--flow", "bronze.tracker_events")
    assert unreachable_broker.returncode == 4
    sentence = (
        "sluice: SLUICE_KAFKA is 127.0.0.1:1, where no Kafka broker answers: start it (make up), or correct the setting"
    )
    assert sentence in unreachable_broker.stdout.splitlines()
    assert "Traceback" not in unknown_flow.stdout + unknown_option.stdout + unreachable_broker.stdout
    assert not (pipeline.home / "checkpoints").exists()


def test_a_mistake_in_a_table_file_is_one_sentence_and_exit_code_3():
    script = (
        "from include import catalog\n"
        "from include.errors import report\n"
        "report(lambda: print(catalog.require('tests.mistakes.unknown_source')))"
    )
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 3
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("sluice: tests/mistakes/unknown_source/silver/readings.py: ")
