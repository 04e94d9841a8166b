"""Several flows append to one table, each with its own checkpoint."""

from collections import Counter
from dataclasses import replace

import pytest

from include.control.commands import Action
from include.errors import FlowBroken, FlowFailed
from include.lake import locations
from include.maintenance import table_survey
from include.spec import Append, Delta, Expect, Kafka, Table
from tests.support.commits import intercept_commits
from tests.support.flows import declared, only_in_full_runs, rows_of, wait_for_rows
from tests.support.topic import Topic
from tests.support.waiting import wait_until

ROW = "id INT, copy INT"


def union_table(name: str, **values: object) -> Table:
    """A silver table that reads two bronze tables."""
    source = {"eu": Delta(f"bronze.{name}_eu", max_files=1), "us": Delta(f"bronze.{name}_us", max_files=1)}
    values = {"interval_seconds": 0.1, "schema": ROW, "source": source, **values}
    return Table(name=f"silver.{name}", comment="both", **values)


@pytest.fixture
def fill(append, name):
    """`fill(eu=[1, 2], us=[1])` appends these ids to the sources, one row in each commit."""

    def append_rows(**ids_by_branch: list[int]) -> None:
        for branch, numbers in ids_by_branch.items():
            for copy, number in enumerate(numbers):
                append(f"bronze.{name}_{branch}", [{"id": number, "copy": copy}], ROW)

    return append_rows


def ids(table: str) -> Counter:
    return Counter(row["id"] for row in rows_of(table))


def test_a_topic_and_a_table_fill_one_table_and_each_goes_on_where_its_own_last_commit_ended(
    chain, topic, broker, name, run_once, ask
):
    topic.create().send(1, 2)
    other_topic = Topic(broker).create().send(10)
    source = {"": Kafka(topic.name), "more": Delta(f"bronze.{name}_more")}
    table = declared(chain.bronze, source=source)
    other_bronze = replace(chain.bronze, name=f"bronze.{name}_more", source=Kafka(other_topic.name))
    run_once(other_bronze, *table.flows)
    other_topic.send(11, 12)
    run_once(other_bronze, *table.flows)
    ask(Action.RESET_CHECKPOINT, table.flows[0])
    ask(Action.RESET_CHECKPOINT, table.flows[1])
    topic.send(3)
    other_topic.send(13)
    run_once(other_bronze, *table.flows)
    assert Counter(row["value"] for row in rows_of(table.name)) == Counter(
        str(number).encode() for number in (1, 2, 3, 10, 11, 12, 13)
    )
    for flow in table.flows:
        assert (locations.checkpoints(flow.flow) / "2" / "owner.json").exists()


@only_in_full_runs
def test_a_table_with_one_source_gets_a_second_one_and_loses_it_again(fill, run_once, name):
    fill(eu=[1], us=[2])
    table = union_table(name)
    eu, us = table.source["eu"], table.source["us"]
    run_once(replace(table, source=eu))
    run_once(*replace(table, source={"": eu, "us": us}).flows)
    fill(eu=[3], us=[4])
    run_once(replace(table, source=eu))
    run_once(*replace(table, source={"": eu, "us": us}).flows)
    assert ids(table.name) == Counter([1, 2, 3, 4])


@only_in_full_runs
def test_a_branch_that_gets_another_name_is_refused_instead_of_doubling_its_rows(fill, run_once, name):
    fill(eu=[1], us=[2])
    table = union_table(name)
    run_once(*table.flows)
    renamed_table = replace(table, source={"europe": table.source["eu"], "us": table.source["us"]})
    with pytest.raises(
        FlowBroken, match=f"flow silver.{name}.eu has read .*: give the branch its old name back"
    ) as refusal:
        run_once(renamed_table.flows[0])
    assert refusal.value.error == "CHECKPOINT_OF_ANOTHER_DEFINITION"
    assert ids(table.name) == Counter([1, 2])


@only_in_full_runs
def test_of_rows_that_two_flows_bring_at_once_each_counts_once(fill, driver, name):
    numbers = list(range(6))
    fill(eu=numbers, us=numbers)
    table = union_table(name, write=Append(unique=("id",)))
    with driver(*table.flows) as running_driver:
        wait_until(lambda: all(_has_read(running_driver, flow, len(numbers)) for flow in table.flows), 240)
    assert ids(table.name) == Counter(numbers)


def _has_read(running_driver, flow: Table, versions: int) -> bool:
    query = running_driver.query(flow)
    progress = query and query.lastProgress
    return bool(progress) and progress.batchId >= versions - 1 and progress.numInputRows == 0


@only_in_full_runs
def test_what_one_flow_has_quarantined_outlives_the_replay_of_the_other(fill, run_once, name, monkeypatch):
    fill(eu=[-1, 1], us=[-2, 2])
    table = union_table(name, expect=(Expect("positive", "id > 0"),))
    eu, us = table.flows

    def fail(flow, commit):
        if flow.branch == "eu":
            raise OSError("the disk is gone")
        commit()

    with monkeypatch.context() as patch:
        intercept_commits(patch, fail)
        with pytest.raises(FlowFailed, match="the disk is gone"):
            run_once(eu)
        run_once(us)
    run_once(eu, us)
    assert ids(table.name) == Counter([1, 2])
    quarantined = [(row["id"], row["_flow"]) for row in rows_of(table.quarantine)]
    assert sorted(quarantined) == [(-2, us.flow), (-1, eu.flow)]


@only_in_full_runs
def test_a_window_has_a_table_of_two_flows_to_itself_and_both_go_on(fill, driver, maintain, name):
    fill(eu=[1, 2, 3], us=[4, 5, 6])
    table = union_table(name)
    with driver(*table.flows):
        wait_for_rows(table, 6)
        window = maintain(table)
        assert window.state == "done", window.reason
        fill(eu=[7], us=[8])
        wait_for_rows(table, 8)
    assert ids(table.name) == Counter(range(1, 9))


def test_flows_of_one_table_share_it_only_where_none_looks_at_it_and_late_commits_fail():
    flow = union_table("t").flows[0]
    assert table_survey.needs_exclusive_write(flow, late_commits_fail=False)
    assert not table_survey.needs_exclusive_write(flow, late_commits_fail=True)
    assert table_survey.needs_exclusive_write(replace(flow, write=Append(unique=("id",))), late_commits_fail=True)
    assert table_survey.needs_exclusive_write(
        replace(flow, expect=(Expect("positive", "id > 0"),)), late_commits_fail=True
    )
    assert not table_survey.needs_exclusive_write(replace(flow, branch=None), late_commits_fail=False)
