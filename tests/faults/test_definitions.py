"""A table file changes after its flow has run."""

import json
from dataclasses import replace

import pytest
from sqlalchemy import select

from include.catalog import Catalog
from include.control.commands import Action
from include.control.store import database
from include.control.store.schema import audits
from include.errors import FlowBroken, FlowFailed
from include.lake import locations
from include.monitoring import stale_rows
from include.spec import Append, Bucket, Delta, Expect, Kafka, Upsert
from tests.support.backfills import Backfills
from tests.support.commits import fail_commits
from tests.support.flows import only_in_full_runs, rows_of
from tests.support.topic import Topic


def outdated_notices(table) -> tuple[str, ...]:
    """The notices of `status` about rows that an earlier definition wrote."""
    return stale_rows.by_table(Catalog({table.name: table})).get(table.name, ())


def owner(table) -> dict:
    return json.loads((locations.checkpoints(table.name) / "1" / "owner.json").read_text())


@pytest.fixture
def deployments(engine):
    """`deployments(table)` returns the audit entries about deployed definitions of a flow."""

    def results(table) -> list[str]:
        is_deployment = (audits.c.target == table.name) & (audits.c.action == "deploy")
        with database.transaction(engine) as connection:
            return list(
                connection.execute(select(audits.c.result).where(is_deployment).order_by(audits.c.number)).scalars()
            )

    return results


def double_numbers(rows):
    return rows.selectExpr("2 * try_cast(CAST(value AS STRING) AS INT) AS number", "partition", "offset").selectExpr(
        "*", "timestamp_seconds(number) AS time"
    )


def test_a_changed_transform_holds_from_the_next_batch_on_and_leaves_the_old_rows(chain, topic, run_once, deployments):
    topic.create().send(1, 2)
    run_once(chain.bronze, chain.silver)
    run_once(chain.bronze, chain.silver)
    topic.send(3, 4)
    run_once(chain.bronze, replace(chain.silver, expect=(Expect("is_number", "number IS NOT NULL AND number <> 4"),)))
    topic.send(5)
    run_once(chain.bronze, replace(chain.silver, parse=None, comment="other words"))
    assert [entry["from_batch"] for entry in owner(chain.silver)["definitions"]] == [0, 1, 2]
    assert deployments(chain.silver) == [f"holds from batch {batch} of generation 1 on" for batch in range(3)]
    assert sorted(row["number"] for row in rows_of(chain.silver.name)) == [1, 2, 3, 5]


@only_in_full_runs
def test_a_batch_that_was_planned_before_a_change_is_made_by_todays_code(chain, topic, run_once, monkeypatch):
    topic.create().send(1, "x")
    run_once(chain.bronze, chain.silver)
    topic.send(3, "y")
    run_once(chain.bronze)

    with monkeypatch.context() as patch, pytest.raises(FlowFailed, match="the disk is gone"):
        fail_commits(patch)
        run_once(chain.silver)
    topic.send(5)
    changed_silver = replace(chain.silver, comment="doubled", transform=double_numbers)
    run_once(chain.bronze, changed_silver)
    assert [entry["from_batch"] for entry in owner(changed_silver)["definitions"]] == [0, 1]
    assert sorted(row["number"] for row in rows_of(changed_silver.name)) == [1, 6, 10]
    assert sorted(row["offset"] for row in rows_of(changed_silver.quarantine)) == [1, 3]


def test_a_batch_that_was_written_before_a_change_is_not_made_again_by_todays_code(chain, topic, run_once):
    topic.create().send(1, "x")
    run_once(chain.bronze, chain.silver)
    for file in (locations.checkpoints(chain.silver.name) / "1" / "commits").iterdir():
        file.unlink()
    topic.send(5)
    changed_silver = replace(
        chain.silver, comment="doubled", transform=double_numbers, expect=(Expect("small", "number < 5"),)
    )
    run_once(chain.bronze, changed_silver)
    assert [entry["from_batch"] for entry in owner(changed_silver)["definitions"]] == [0, 1]
    assert [row["number"] for row in rows_of(changed_silver.name)] == [1]
    assert sorted((row["offset"], row["_rules"][0]) for row in rows_of(changed_silver.quarantine)) == [
        (1, "is_number"),
        (2, "small"),
    ]


@only_in_full_runs
def test_a_new_column_is_empty_in_old_rows_of_the_table_and_of_its_quarantine(chain, topic, run_once):
    topic.create().send(1, "x")
    run_once(*chain.all)

    def add_text(rows):
        return chain.silver.transform(rows.withColumn("text", rows.value.cast("string")), "text")

    silver_with_text = replace(chain.silver, schema=f"{chain.silver.schema}, text STRING", transform=add_text)
    topic.send(2, "y")
    run_once(chain.bronze, silver_with_text, chain.gold)
    chain.assert_holds(topic.messages())
    assert sorted((row["offset"], row["text"]) for row in rows_of(silver_with_text.name)) == [(0, None), (2, "2")]
    assert sorted((row["offset"], row["text"]) for row in rows_of(silver_with_text.quarantine)) == [(1, None), (3, "y")]


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ("number INT, time TIMESTAMP, partition INT", "column 'offset' is stored and no longer declared: declare it"),
        pytest.param(
            "number BIGINT, time TIMESTAMP, partition INT, offset BIGINT",
            "column 'number' is stored as INT and declared BIGINT: declare it as it is stored",
            marks=only_in_full_runs,
        ),
    ],
    ids=["removed", "retyped"],
)
def test_a_column_that_is_removed_or_retyped_is_refused(chain, topic, run_once, schema, sentence):
    topic.create().send(1)
    run_once(*chain.all)
    with pytest.raises(FlowBroken, match=f"^{chain.silver.name}: {sentence}") as refusal:
        run_once(replace(chain.silver, schema=schema))
    assert refusal.value.error == "SCHEMA_CHANGED"
    topic.send(2)
    run_once(*chain.all)
    chain.assert_holds(topic.messages())


CHANGES = {
    "source": lambda table: replace(table, source=Delta("bronze.another")),
    "mode": lambda table: replace(table, write=Append()),
    "keys": lambda table: replace(table, write=replace(table.write, keys=("minute", "rows"))),
    "bucket": lambda table: replace(table, write=Upsert(keys=("minute",), recompute=Bucket("minute", "time", "hour"))),
}
OTHER_CHANGES = ("source", "mode", "bucket")


@pytest.mark.parametrize("change", ["keys", *(pytest.param(name, marks=only_in_full_runs) for name in OTHER_CHANGES)])
def test_a_change_that_its_checkpoint_cannot_follow_is_refused(chain, topic, run_once, change):
    topic.create().send(1)
    run_once(*chain.all)
    with pytest.raises(FlowBroken, match=f"^{chain.gold.name}: its checkpoint .*restore the declaration") as refusal:
        run_once(CHANGES[change](chain.gold))
    assert refusal.value.error == "CHECKPOINT_OF_ANOTHER_DEFINITION"
    topic.send(2)
    run_once(*chain.all)
    chain.assert_holds(topic.messages())


def test_a_flow_that_reads_another_topic_now_is_refused_until_that_is_accepted(chain, topic, run_once, ask, broker):
    topic.create().send(1)
    run_once(chain.bronze)
    other_topic = Topic(broker).create().send(2)
    moved_bronze = replace(chain.bronze, source=Kafka(other_topic.name))
    with pytest.raises(FlowBroken, match=f"^{chain.bronze.name}: ") as refusal:
        run_once(moved_bronze)
    assert refusal.value.error == "CHECKPOINT_OF_ANOTHER_DEFINITION"
    ask(Action.RESET_CHECKPOINT, moved_bronze)
    for _ in range(2):
        with pytest.raises(FlowBroken, match="action accept data loss begins at the start of the new"):
            run_once(moved_bronze)
    old_messages = topic.messages()
    ask(Action.ACCEPT_DATA_LOSS, moved_bronze)
    run_once(moved_bronze)
    chain.assert_bronze_holds(old_messages + other_topic.messages())


@only_in_full_runs
def test_a_reset_does_not_let_other_keys_into_the_table(chain, topic, run_once, ask):
    topic.create().send(1)
    run_once(*chain.all)
    ask(Action.RESET_CHECKPOINT, chain.gold)
    with pytest.raises(FlowBroken, match="restore the declaration") as refusal:
        run_once(CHANGES["keys"](chain.gold))
    assert refusal.value.error == "CHECKPOINT_OF_ANOTHER_DEFINITION"
    topic.send(2)
    run_once(*chain.all)
    chain.assert_holds(topic.messages())


def test_rows_of_an_earlier_definition_are_named_until_they_are_made_again_or_kept(chain, topic, run_once, spark, ask):
    bronze, silver, _ = chain.in_slices
    topic.create().send(1, 2)
    run_once(bronze, silver)
    assert outdated_notices(silver) == ()
    run_once(bronze, replace(silver, comment="other words"))
    assert outdated_notices(silver) == ()
    changed_silver = replace(silver, transform=double_numbers)
    topic.send(3)
    run_once(bronze, changed_silver)
    [notice] = outdated_notices(changed_silver)
    assert "holds from batch 1/1 on" in notice
    assert f"""backfill -c '{{"table": "{silver.name}", "from": "1970-01-01", "to": "1970-01-02"}}'""" in notice
    Backfills(spark, (bronze, changed_silver)).run(changed_silver, 0, 86400)
    assert sorted(row["number"] for row in rows_of(silver.name)) == [2, 4, 6]
    assert outdated_notices(changed_silver) == ()
    topic.send(4)
    run_once(bronze, silver)
    assert len(outdated_notices(silver)) == 1
    assert ask(Action.KEEP_OLD_ROWS, silver) == f"{silver.flow}: its older rows stay as they are"
    assert outdated_notices(silver) == ()


def test_rows_that_were_made_again_before_the_flow_began_with_its_change_are_not_outdated(
    chain, topic, run_once, spark
):
    bronze, silver, _ = chain.in_slices
    changed_silver = replace(silver, transform=double_numbers)
    jobs = Backfills(spark, (bronze, changed_silver))
    topic.create().send(1, 2, 86_400)
    run_once(bronze, silver)
    jobs.run(changed_silver, 0, 86_400)
    run_once(changed_silver)
    [notice] = outdated_notices(changed_silver)
    assert "rows from 1970-01-02T00:00:00Z to 1970-01-03T00:00:00Z are of an earlier one" in notice
    jobs.run(changed_silver, as_a_whole=True)
    assert outdated_notices(changed_silver) == ()
    jobs = Backfills(spark, (bronze, silver))
    jobs.run(silver, as_a_whole=True)
    run_once(silver)
    assert outdated_notices(silver) == ()
    jobs = Backfills(spark, (bronze, changed_silver))
    jobs.run(changed_silver, as_a_whole=True)
    topic.send(3)
    run_once(bronze, silver)
    run_once(changed_silver)
    assert len(outdated_notices(changed_silver)) == 1


def test_a_change_that_is_taken_back_before_it_made_a_row_leaves_none_of_an_earlier_definition(chain, topic, run_once):
    bronze, silver, _ = chain.in_slices
    topic.create().send(1, 2)
    run_once(bronze, silver)
    run_once(replace(silver, transform=double_numbers))
    assert len(outdated_notices(silver)) == 1
    run_once(silver)
    assert outdated_notices(silver) == ()


def test_a_change_that_comes_with_a_reset_or_to_an_empty_table_is_judged_by_the_rows_that_it_finds(
    chain, topic, run_once, ask
):
    bronze, silver, _ = chain.in_slices
    topic.create().send("x")
    run_once(bronze, silver)
    changed_silver = replace(silver, transform=double_numbers)
    run_once(changed_silver)
    assert outdated_notices(changed_silver) == ()
    topic.send(1)
    run_once(bronze, changed_silver)
    ask(Action.RESET_CHECKPOINT, silver)
    run_once(silver)
    [notice] = outdated_notices(silver)
    assert "holds from batch 2/1 on" in notice
