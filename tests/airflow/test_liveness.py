"""Whether drivers live is asked of all at once, and who is told of many sick flows can still read it."""

import json
import socket
from collections.abc import Iterator

import pytest

from include.control.process import Process
from include.orchestration.launchers.liveness import Liveness
from include.orchestration.launchers.local import Local
from include.orchestration.launchers.standalone import ANSWER_SECONDS
from include.orchestration.reconcile import MOST_TASKS, to_task_arguments

GONE = Process(1, -1.0, "another boot").to_json()


@pytest.fixture
def hanging() -> Iterator[str]:
    """The handle of a driver on a cluster that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield json.dumps({"submission": "driver-1", "rest": f"http://127.0.0.1:{server.getsockname()[1]}"})


def test_a_cluster_that_hangs_holds_up_no_other_driver(hanging):
    # Asked one after the other, the second one's answer would come too late.
    liveness = Liveness({"hangs": hanging, "gone": GONE}, Local(""), ANSWER_SECONDS - 1)
    assert not liveness.is_alive("gone")


def test_a_driver_whose_cluster_does_not_answer_in_time_is_taken_to_live(hanging):
    assert Liveness({"hangs": hanging}, Local(""), 0).is_alive("hangs")


def test_a_handle_that_nobody_can_read_is_the_trouble_of_its_driver_alone():
    liveness = Liveness({"damaged": "{", "gone": GONE}, Local(""))
    assert not liveness.is_alive("gone")
    with pytest.raises(ValueError):
        liveness.is_alive("damaged")


def sick(count: int) -> list[dict[str, str]]:
    return [{"flow": f"silver.t{number}", "reason": f"BROKEN: reason {number}"} for number in range(count)]


def test_each_sick_flow_is_a_task_with_its_name_until_they_are_too_many():
    assert to_task_arguments(sick(MOST_TASKS)) == sick(MOST_TASKS)


def test_of_many_sick_flows_the_last_task_lists_those_that_have_none():
    tasks = to_task_arguments(sick(300))
    assert tasks[:-1] == sick(MOST_TASKS - 1)
    assert tasks[-1]["flow"] == f"{300 - MOST_TASKS + 1} more flows"
    listed = [line for line in tasks[-1]["reason"].splitlines() if line]
    assert listed == [f"{one['flow']}: {one['reason']}" for one in sick(300)[MOST_TASKS - 1 :]]
