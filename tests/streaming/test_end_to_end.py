"""Compares the tables from Kafka to gold with plain Python."""

import subprocess
import sys

from tests.support.pipeline import Pipeline, random_events


def test_gold_is_exactly_what_plain_python_makes_of_the_same_events(pipeline: Pipeline):
    events = random_events(1)
    assert {event.kind for event in events} >= {"malformed", "empty", "tombstone", "wrong type", "late", "repeated"}
    pipeline.produce(events)
    result = pipeline.run("--once")
    assert result.returncode == 0, result.stdout
    assert "sluice: gold.heart_rate_by_model has read its source to the end, batches: 1\n" in result.stdout
    pipeline.assert_nothing_lost_or_doubled()
    pipeline.produce(random_events(2))
    result = pipeline.run("--once")
    assert result.returncode == 0, result.stdout
    pipeline.assert_nothing_lost_or_doubled()
    pipeline.assert_the_ledger_agrees()


def test_a_wrong_call_is_one_sentence_and_an_exit_code(pipeline: Pipeline):
    unknown_flow = pipeline.run("--flow", "silver.tracker_reading")
    assert unknown_flow.returncode == 2
    sentence = "sluice: there is no flow 'silver.tracker_reading': did you mean 'silver.tracker_readings'?"
    assert sentence in unknown_flow.stdout.splitlines()
    unknown_option = pipeline.run("--twice")
    assert unknown_option.returncode == 2
    assert "stream.py: error: unrecognized arguments: --twice" in unknown_option.stdout.splitlines()
    unreachable_broker = pipeline.run("--once", "--flow", "bronze.tracker_events", SLUICE_KAFKA="127.0.0.1:1")
    assert unreachable_broker.returncode == 4
    sentence = (
        "sluice: SLUICE_KAFKA is 127.0.0.1:1, where no Kafka broker answers: start it (make up), or correct the setting"
    )
    assert sentence in unreachable_broker.stdout.splitlines()
    assert "Traceback" not in unknown_flow.stdout + unknown_option.stdout + unreachable_broker.stdout
    assert not (pipeline.home / "checkpoints").exists()


def test_a_mistake_in_a_table_file_is_one_sentence_and_exit_code_3(pipeline: Pipeline, tmp_path):
    script = (
        "from include import catalog\n"
        "from include.errors import report\n"
        "report(lambda: print(catalog.require('tests.mistakes.unknown_source')))"
    )
    result = subprocess.run([sys.executable, "-c", script], env=pipeline.environment, capture_output=True, text=True)
    assert result.returncode == 3
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("sluice: tests/mistakes/unknown_source/silver/readings.py: ")
