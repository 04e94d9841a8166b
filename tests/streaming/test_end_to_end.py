"""From Kafka to gold, held against plain Python."""

import subprocess
import sys

from tests.support.pipeline import Pipeline, part


def test_gold_is_exactly_what_plain_python_makes_of_the_same_events(pipeline: Pipeline):
    sent = part(1)
    assert {event.kind for event in sent} >= {"malformed", "empty", "tombstone", "wrong type", "late", "repeated"}
    pipeline.produce(sent)
    done = pipeline.run("--once")
    assert done.returncode == 0, done.stdout
    pipeline.assert_nothing_lost_or_doubled()
    pipeline.produce(part(2))
    done = pipeline.run("--once")
    assert done.returncode == 0, done.stdout
    pipeline.assert_nothing_lost_or_doubled()
    pipeline.assert_the_ledger_agrees()


def test_a_wrong_call_is_one_sentence_and_an_exit_code(pipeline: Pipeline):
    unknown = pipeline.run("--flow", "silver.tracker_reading")
    assert unknown.returncode == 2
    sentence = "sluice: there is no flow 'silver.tracker_reading': did you mean 'silver.tracker_readings'?"
    assert sentence in unknown.stdout.splitlines()
    option = pipeline.run("--twice")
    assert option.returncode == 2
    assert "stream.py: error: unrecognized arguments: --twice" in option.stdout.splitlines()
    unreachable = pipeline.run("--once", "--flow", "bronze.tracker_events", SLUICE_KAFKA="127.0.0.1:1")
    assert unreachable.returncode == 4
    sentence = (
        "sluice: SLUICE_KAFKA is 127.0.0.1:1, where no Kafka broker answers: start it (make up), or correct the setting"
    )
    assert sentence in unreachable.stdout.splitlines()
    assert "Traceback" not in unknown.stdout + option.stdout + unreachable.stdout
    assert not (pipeline.home / "checkpoints").exists()


def test_a_mistake_in_a_table_file_is_one_sentence_and_exit_code_3(pipeline: Pipeline, tmp_path):
    script = (
        "from include import catalog\n"
        "from include.errors import report\n"
        "report(lambda: print(catalog.require('tests.mistakes.unknown_source')))"
    )
    done = subprocess.run([sys.executable, "-c", script], env=pipeline.environment, capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("sluice: tests/mistakes/unknown_source/silver/readings.py: ")
