"""A flow moves between two running drivers while events arrive, exactly once. The test prints the pauses."""

import statistics
import subprocess
import sys

from include.control import commands
from include.control.commands import Action, Command
from tests.conftest import ROOT
from tests.support.flows import only_in_full_runs
from tests.support.pipeline import Pipeline
from tests.support.producing import produce_repeatedly
from tests.support.waiting import wait_until

SILVER, GOLD = "silver.tracker_readings", "gold.heart_rate_by_model"
MOVES = ("main", "other") * 3
# Events of a turn. Batches begin every two seconds, so each has some.
EVENTS, EVERY_SECONDS = 50, 0.5
# Batches that prove that a flow goes on.
BATCHES = 5


def ask_for_move(pipeline: Pipeline, flow: str, to: str) -> None:
    commands.execute(pipeline.control, Command(Action.MOVE, (flow,), "ann", "a test", to=to))


def move(pipeline: Pipeline, flow: str, to: str) -> str:
    """Move a flow as a person does, and return what the command prints."""
    command = [sys.executable, "-m", "include.cli", "move", flow, "--to", to, "--reason", "a test"]
    result = subprocess.run(
        command, cwd=ROOT, env=pipeline.environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr + pipeline.log.read_text()[-3000:]
    return result.stdout


def driver_of(pipeline: Pipeline, flow: str) -> str:
    holder = pipeline.holders().get(flow)
    return holder.driver if holder else ""


def commit_times(pipeline: Pipeline, flow: str, after: int = 0) -> list[float]:
    """When the versions of the table from this one on were made, in seconds."""
    history = pipeline.stored_table(flow).history()
    return [commit["timestamp"] / 1000 for commit in reversed(history) if commit["version"] >= after]


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in zip(times, times[1:], strict=False)]


def wait_for_batches(pipeline: Pipeline, flow: str) -> None:
    begun = pipeline.commits(flow)
    wait_until(lambda: pipeline.commits(flow) >= begun + BATCHES, 240, lambda: pipeline.log.read_text()[-3000:])


@only_in_full_runs
def test_a_flow_that_moves_between_drivers_while_events_arrive_loses_and_doubles_no_row(pipeline: Pipeline, capsys):
    with produce_repeatedly(lambda _: pipeline.produce_next(EVENTS), EVENTS, EVERY_SECONDS):
        drivers = [pipeline.submit()]
        wait_until(lambda: pipeline.count(GOLD) > 0, 240, pipeline.log.read_text)
        ask_for_move(pipeline, SILVER, "other")
        ask_for_move(pipeline, GOLD, "other")
        wait_for_batches(pipeline, SILVER)
        # Nothing ends before the other driver is up.
        assert driver_of(pipeline, SILVER) == driver_of(pipeline, GOLD) == "main"
        drivers.append(pipeline.submit("--driver", "other"))
        wait_until(lambda: {driver_of(pipeline, flow) for flow in (SILVER, GOLD)} == {"other"}, 240)
        wait_for_batches(pipeline, SILVER)

        pauses = []
        for driver in MOVES:
            version = pipeline.commits(SILVER)
            assert f"{SILVER} moved" in move(pipeline, SILVER, driver)
            wait_for_batches(pipeline, SILVER)
            assert driver_of(pipeline, SILVER) == driver
            pauses.append(max(gaps(commit_times(pipeline, SILVER, version))))
        usual_seconds = statistics.median(gaps(commit_times(pipeline, SILVER)))
    assert [driver.poll() for driver in drivers] == [None, None]
    pipeline.wait_until_gold_is_right()
    pipeline.assert_nothing_lost_or_doubled()
    pipeline.assert_the_ledger_agrees()
    rounded = ", ".join(f"{seconds:.1f}" for seconds in pauses)
    with capsys.disabled():
        print(f"\nbetween two batches: {usual_seconds:.1f} s as usual, {rounded} s at {len(MOVES)} moves")
