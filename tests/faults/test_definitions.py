"""A table file that changes after its flow has run."""

import json
from dataclasses import replace

import pytest
from sqlalchemy import select

from include.catalog import Catalog
from include.control.commands import Action
from include.control.store import database
from include.control.store.schema import audits
from include.errors import FlowBroken, FlowFailed
from include.monitoring import outdated_rows as outdated_words
from include.settings import settings
from include.spec import Append, Bucket, Delta, Expect, Kafka, Upsert
from tests.support.backfills import Backfills
from tests.support.commits import fail_commits
from tests.support.flows import only_in_full_runs, rows_of
from tests.support.topic import Topic


def older(table) -> tuple[str, ...]:
    """What `status` says of rows that an earlier definition made."""
    return outdated_words.by_table(Catalog({table.name: table})).get(table.name, ())


def owner(table) -> dict:
    return json.loads((settings().checkpoints(table.name) / "1" / "owner.json").read_text())


@pytest.fixture
def deployments(engine):
    """What the audit says of a flow's definitions."""

    def of(table) -> list[str]:
        mine = (audits.c.target == table.name) & (audits.c.action == "deploy")
        with database.transaction(engine) as connection:
            return list(connection.execute(select(audits.c.result).where(mine).order_by(audits.c.number)).scalars())

    return of


def doubled(rows):
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

    with monkeypatch.context() as patched, pytest.raises(FlowFailed, match="the disk is gone"):
        fail_commits(patched)
        run_once(chain.silver)
    topic.send(5)
    today = replace(chain.silver, comment="doubled", transform=doubled)
    run_once(chain.bronze, today)
    assert [entry["from_batch"] for entry in owner(today)["definitions"]] == [0, 1]
    assert sorted(row["number"] for row in rows_of(today.name)) == [1, 6, 10]
    assert sorted(row["offset"] for row in rows_of(today.quarantine)) == [1, 3]


def test_a_batch_that_was_written_before_a_change_is_not_made_again_by_todays_code(chain, topic, run_once):
    topic.create().send(1, "x")
    run_once(chain.bronze, chain.silver)
    for file in (settings().checkpoints(chain.silver.name) / "1" / "commits").iterdir():
        file.unlink()
    topic.send(5)
    today = replace(chain.silver, comment="doubled", transform=doubled, expect=(Expect("small", "number < 5"),))
    run_once(chain.bronze, today)
    assert [entry["from_batch"] for entry in owner(today)["definitions"]] == [0, 1]
    assert [row["number"] for row in rows_of(today.name)] == [1]
    assert sorted((row["offset"], row["_rules"][0]) for row in rows_of(today.quarantine)) == [
        (1, "is_number"),
        (2, "small"),
    ]


@only_in_full_runs
def test_a_new_column_is_empty_in_old_rows_of_the_table_and_of_its_quarantine(chain, topic, run_once):
    topic.create().send(1, "x")
    run_once(*chain.all)

    def and_text(rows):
        return chain.silver.transform(rows.withColumn("text", rows.value.cast("string")), "text")

    wider = replace(chain.silver, schema=f"{chain.silver.schema}, text STRING", transform=and_text)
    topic.send(2, "y")
    run_once(chain.bronze, wider, chain.gold)
    chain.assert_holds(topic.messages())
    assert sorted((row["offset"], row["text"]) for row in rows_of(wider.name)) == [(0, None), (2, "2")]
    assert sorted((row["offset"], row["text"]) for row in rows_of(wider.quarantine)) == [(1, None), (3, "y")]


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ("number INT, time TIMESTAMP, partition INT", "column 'offset' is stored and no longer declared: declare it"),
        (
            "number BIGINT, time TIMESTAMP, partition INT, offset BIGINT",
            "column 'number' is stored as INT and declared BIGINT: declare it as it is stored",
        ),
    ],
    ids=["removed", "retyped"],
)
def test_a_column_that_is_removed_or_retyped_is_refused(chain, topic, run_once, schema, sentence):
    topic.create().send(1)
    run_once(*chain.all)
    with pytest.raises(FlowBroken, match=f"^{chain.silver.name}: {sentence}") as refused:
        run_once(replace(chain.silver, schema=schema))
    assert refused.value.error == "SCHEMA_CHANGED"
    topic.send(2)
    run_once(*chain.all)
    chain.assert_holds(topic.messages())


CHANGES = {
    "source": lambda table: replace(table, source=Delta("bronze.another")),
    "mode": lambda table: replace(table, write=Append()),
    "keys": lambda table: replace(table, write=replace(table.write, keys=("minute", "rows"))),
    "bucket": lambda table: replace(table, write=Upsert(keys=("minute",), recompute=Bucket("minute", "time", "hour"))),
}
OTHERS = ("source", "mode", "bucket")


@pytest.mark.parametrize("change", ["keys", *(pytest.param(one, marks=only_in_full_runs) for one in OTHERS)])
def test_a_change_that_its_checkpoint_cannot_follow_is_refused(chain, topic, run_once, change):
    topic.create().send(1)
    run_once(*chain.all)
    with pytest.raises(FlowBroken, match=f"^{chain.gold.name}: its checkpoint .*put the declaration back") as refused:
        run_once(CHANGES[change](chain.gold))
    assert refused.value.error == "CHECKPOINT_OF_ANOTHER_DEFINITION"
    topic.send(2)
    run_once(*chain.all)
    chain.assert_holds(topic.messages())


def test_a_flow_that_reads_another_topic_now_is_refused_until_that_is_accepted(chain, topic, run_once, ask, broker):
    topic.create().send(1)
    run_once(chain.bronze)
    other = Topic(broker).create().send(2)
    moved = replace(chain.bronze, source=Kafka(other.name))
    with pytest.raises(FlowBroken, match=f"^{chain.bronze.name}: ") as refused:
        run_once(moved)
    assert refused.value.error == "CHECKPOINT_OF_ANOTHER_DEFINITION"
    ask(Action.RESET_CHECKPOINT, moved)
    for _ in range(2):
        with pytest.raises(FlowBroken, match="action accept data loss begins at the start of the new"):
            run_once(moved)
    old = topic.messages()
    ask(Action.ACCEPT_DATA_LOSS, moved)
    run_once(moved)
    chain.assert_bronze_holds(old + other.messages())


@only_in_full_runs
def test_a_reset_does_not_let_other_keys_into_the_table(chain, topic, run_once, ask):
    topic.create().send(1)
    run_once(*chain.all)
    ask(Action.RESET_CHECKPOINT, chain.gold)
    with pytest.raises(FlowBroken, match="put the declaration back") as refused:
        run_once(CHANGES["keys"](chain.gold))
    assert refused.value.error == "CHECKPOINT_OF_ANOTHER_DEFINITION"
    topic.send(2)
    run_once(*chain.all)
    chain.assert_holds(topic.messages())


def test_rows_of_an_earlier_definition_are_named_until_they_are_made_again_or_kept(chain, topic, run_once, spark, ask):
    bronze, silver, _ = chain.in_slices
    topic.create().send(1, 2)
    run_once(bronze, silver)
    assert older(silver) == ()
    run_once(bronze, replace(silver, comment="other words"))
    assert older(silver) == ()
    changed = replace(silver, transform=doubled)
    topic.send(3)
    run_once(bronze, changed)
    [said] = older(changed)
    assert "holds from batch 1/1 on" in said
    assert f"""backfill.{silver.name} -c '{{"from": "1970-01-01", "to": "1970-01-02"}}'""" in said
    Backfills(spark, (bronze, changed)).run(changed, 0, 86400)
    assert sorted(row["number"] for row in rows_of(silver.name)) == [2, 4, 6]
    assert older(changed) == ()
    topic.send(4)
    run_once(bronze, silver)
    assert len(older(silver)) == 1
    assert ask(Action.KEEP_OLD_ROWS, silver) == f"{silver.flow}: its older rows stay as they are"
    assert older(silver) == ()


def test_a_change_that_is_taken_back_before_it_made_a_row_leaves_none_of_an_earlier_definition(chain, topic, run_once):
    bronze, silver, _ = chain.in_slices
    topic.create().send(1, 2)
    run_once(bronze, silver)
    run_once(replace(silver, transform=doubled))
    assert len(older(silver)) == 1
    run_once(silver)
    assert older(silver) == ()


def test_a_change_that_comes_with_a_reset_or_to_an_empty_table_is_judged_by_the_rows_that_it_finds(
    chain, topic, run_once, ask
):
    bronze, silver, _ = chain.in_slices
    topic.create().send("x")
    run_once(bronze, silver)
    changed = replace(silver, transform=doubled)
    run_once(changed)
    assert older(changed) == ()
    topic.send(1)
    run_once(bronze, changed)
    ask(Action.RESET_CHECKPOINT, silver)
    run_once(silver)
    [said] = older(silver)
    assert "holds from batch 2/1 on" in said
