"""The liveness of all drivers is checked in parallel. A long list of unhealthy flows stays readable."""

import json
import socket
from collections.abc import Iterator

import pytest

from include.airflow.launchers.launch import Processes
from include.airflow.launchers.standalone import ANSWER_SECONDS
from include.airflow.launchers.submit import Local
from include.airflow.supervisor.reconcile import MOST_TASKS, to_task_arguments
from include.control.leases.process import Process

DEAD_HANDLE = Process(1, -1.0, "another boot").to_json()


@pytest.fixture
def hanging() -> Iterator[str]:
    """The handle of a driver on a cluster that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield json.dumps({"submission": "driver-1", "rest": f"http://127.0.0.1:{server.getsockname()[1]}"})


def test_a_cluster_that_hangs_holds_up_no_other_driver(hanging):
    # With sequential requests, the second answer would come too late.
    processes = Processes({"hangs": hanging, "gone": DEAD_HANDLE}, Local(""), ANSWER_SECONDS - 1)
    assert processes.dead_handle("gone") == DEAD_HANDLE


def test_a_driver_whose_cluster_does_not_answer_in_time_is_taken_to_live(hanging):
    assert Processes({"hangs": hanging}, Local(""), 0).dead_handle("hangs") is None


def test_a_handle_that_nobody_can_read_is_the_trouble_of_its_driver_alone():
    processes = Processes({"damaged": "{", "gone": DEAD_HANDLE}, Local(""))
    assert processes.dead_handle("gone") == DEAD_HANDLE
    with pytest.raises(ValueError):
        processes.dead_handle("damaged")


def sick_flows(count: int) -> list[dict[str, str]]:
    return [{"flow": f"silver.t{number}", "reason": f"BROKEN: reason {number}"} for number in range(count)]


def test_each_sick_flow_is_a_task_with_its_name_until_they_are_too_many():
    assert to_task_arguments(sick_flows(MOST_TASKS)) == sick_flows(MOST_TASKS)


def test_the_flows_of_one_cause_are_one_task_that_names_each():
    nine = [{**flow, "cause": "driver main"} for flow in sick_flows(9)]
    alone = {"flow": "gold.a", "reason": "BROKEN: why", "cause": ""}
    first, second = to_task_arguments([*nine, alone])
    assert (first["flow"], second) == ("driver main: 9 flows", {"flow": "gold.a", "reason": "BROKEN: why"})
    assert all(f"{flow['flow']}: {flow['reason']}" in first["reason"] for flow in nine)


def test_of_many_sick_flows_the_last_task_lists_those_that_have_none():
    tasks = to_task_arguments(sick_flows(300))
    assert tasks[:-1] == sick_flows(MOST_TASKS - 1)
    assert tasks[-1]["flow"] == f"{300 - MOST_TASKS + 1} more flows"
    lines = [line for line in tasks[-1]["reason"].splitlines() if line]
    assert lines == [f"{flow['flow']}: {flow['reason']}" for flow in sick_flows(300)[MOST_TASKS - 1 :]]
