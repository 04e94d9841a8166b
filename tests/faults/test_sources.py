"""The source of a flow changes, loses records or disappears."""

from dataclasses import replace

import pytest

from include.control.commands import Action
from include.engine.fast_path.topic_reader import TopicReader
from include.errors import FlowBroken, Unreachable
from include.lake import locations
from include.lake.paths import remove_tree
from include.spec import Delta, Flow, Table
from tests.support.commits import switch_fast_path
from tests.support.flows import only_in_full_runs, rows_of, wait_for_rows

LARGE = 5 * 1024 * 1024


@pytest.mark.parametrize("records", [pytest.param(2, marks=only_in_full_runs), 9], ids=["fewer", "more"])
def test_a_topic_that_was_created_anew_is_refused_until_its_loss_is_accepted(
    chain, topic, run_once, ask, lost, records
):
    topic.create().send(*range(5))
    run_once(*chain.all)
    old_messages = topic.messages()
    topic.delete()
    topic.create().send(*range(60, 60 + records))
    with pytest.raises(
        FlowBroken, match=f"{chain.bronze.name}: topic '{topic.name}' .*action accept data loss"
    ) as refusal:
        run_once(chain.bronze)
    assert refusal.value.error == "TOPIC_REPLACED"
    ask(Action.ACCEPT_DATA_LOSS, chain.bronze)
    run_once(*chain.all)
    chain.assert_holds(old_messages + topic.messages())
    assert lost(chain.bronze) == [(0, 5, None, 2)]
    topic.send(*range(120, 123))
    run_once(*chain.all)
    chain.assert_holds(old_messages + topic.messages())


def test_a_topic_that_is_created_anew_while_it_is_read_is_noticed_before_the_next_batch(
    chain, topic, driver, run_once, ask
):
    topic.create().send(*range(5))
    with driver(chain.bronze, is_supervised=False) as running_driver:
        wait_for_rows(chain.bronze, 5)
        old_messages = topic.messages()
        topic.delete()
        topic.create().send(*range(9))
        running_driver.thread.join(240)
        # If the new topic is still shorter than the old one, Spark detects the loss first.
        assert running_driver.error.error in ("TOPIC_REPLACED", "KAFKA_DATA_LOSS")
        assert chain.bronze.name in str(running_driver.error)
    chain.assert_bronze_holds(old_messages)
    ask(Action.START, chain.bronze)
    ask(Action.ACCEPT_DATA_LOSS, chain.bronze)
    run_once(chain.bronze)
    chain.assert_bronze_holds(old_messages + topic.messages())


def test_records_that_retention_took_unread_are_named_and_skipped_only_when_somebody_says_so(
    chain, topic, run_once, ask, lost
):
    topic.create(2).send(*range(6))
    run_once(*chain.all)
    messages_read = topic.messages()
    topic.send(*range(60, 72))
    topic.delete_before(5)
    for _ in range(2):
        with pytest.raises(
            FlowBroken, match=r"partition 0 from offset 3 to before 5.*action accept data loss"
        ) as refusal:
            run_once(chain.bronze)
        assert refusal.value.error == "KAFKA_DATA_LOSS"
    chain.assert_bronze_holds(messages_read)
    ask(Action.ACCEPT_DATA_LOSS, chain.bronze)
    run_once(*chain.all)
    chain.assert_holds(messages_read + [message for message in topic.messages() if message.offset >= 3])
    assert lost(chain.bronze) == [(0, 3, 5, 2)]


@pytest.mark.parametrize("has_fast_path", [True, pytest.param(False, marks=only_in_full_runs)])
def test_records_that_retention_takes_from_a_planned_batch_are_never_skipped_in_silence(
    has_fast_path, chain, topic, run_once, ask, lost, monkeypatch
):
    topic.create().send(*range(4))
    switch_fast_path(monkeypatch, has_fast_path)
    read = TopicReader.read

    def delete_and_read(reader, ranges):
        topic.delete_before(2)
        return read(reader, ranges)

    def delete_records(rows):
        # Without the fast path, each batch calls the transform before Spark reads the records.
        topic.delete_before(2)
        return rows

    monkeypatch.setattr(TopicReader, "read", delete_and_read)
    with pytest.raises(FlowBroken) as refusal:
        run_once(chain.bronze if has_fast_path else replace(chain.bronze, transform=delete_records))
    assert refusal.value.error.startswith("KAFKA_DATA_LOSS")
    assert chain.bronze.name in str(refusal.value)
    with pytest.raises(FlowBroken, match=f"{chain.bronze.name}.*action accept data loss") as refusal:
        run_once(chain.bronze)
    assert refusal.value.error.startswith("KAFKA_DATA_LOSS")
    chain.assert_bronze_holds([])
    ask(Action.ACCEPT_DATA_LOSS, chain.bronze)
    run_once(*chain.all)
    chain.assert_holds(topic.messages())
    assert lost(chain.bronze) == [(0, 0, 2, 2)]


def test_what_a_producer_rolled_back_is_never_ingested_and_the_marks_of_transactions_upset_nothing(
    chain, topic, run_once, ask
):
    topic.create().send_in_transactions((True, (1, 2)), (False, (3, 4)))
    run_once(*chain.all)
    chain.assert_holds(topic.messages())
    topic.send_in_transactions((False, (5,)), (True, (6, b"x")), (False, (7,)))
    run_once(*chain.all)
    ask(Action.RESET_CHECKPOINT, chain.bronze)
    topic.send(8)
    run_once(*chain.all)
    assert [message.value for message in topic.messages()] == [b"1", b"2", b"6", b"x", b"8"]
    chain.assert_holds(topic.messages())


@only_in_full_runs
def test_partitions_that_are_added_are_read_from_their_first_record(chain, topic, run_once, ask):
    topic.create().send(*range(4))
    run_once(chain.bronze)
    topic.add_partitions(3)
    topic.send(*range(60, 66))
    run_once(chain.bronze)
    topic.add_partitions(4)
    topic.send(*range(120, 128))
    ask(Action.RESET_CHECKPOINT, chain.bronze)
    run_once(*chain.all)
    chain.assert_holds(topic.messages())


@only_in_full_runs
def test_a_message_far_above_the_usual_limit_arrives_whole_and_the_ones_after_it_too(chain, topic, run_once):
    topic.create(max_message_bytes=str(2 * LARGE))
    topic.send(1, b"x" * LARGE, 2, b"y" * LARGE, 3, **{"message.max.bytes": 2 * LARGE})
    run_once(*chain.all)
    chain.assert_holds(topic.messages())


def test_a_topic_that_does_not_exist_yet_is_waited_for(chain, topic, run_once):
    with pytest.raises(Unreachable, match=f"topic '{topic.name}' does not exist .*create it"):
        run_once(chain.bronze)
    topic.create().send(1)
    run_once(*chain.all)
    chain.assert_holds(topic.messages())


ROW = "a INT"


def copy_table(name: str, **values: object) -> Table:
    values = {"schema": ROW, **values}
    return Flow(name=f"silver.{name}", comment="a copy", source=Delta(f"bronze.{name}"), **values)


def stored_values(table: Table) -> list:
    return sorted(row["a"] for row in rows_of(table.name))


def test_a_source_table_that_was_overwritten_is_refused(append, run_once, spark, name):
    append(f"bronze.{name}", [{"a": 1}], ROW)
    run_once(copy_table(name))
    path = str(locations.table_path(f"bronze.{name}"))
    spark.createDataFrame([{"a": 2}], ROW).write.format("delta").mode("overwrite").save(path)
    with pytest.raises(FlowBroken) as refusal:
        run_once(copy_table(name))
    assert refusal.value.error.startswith("DELTA_SOURCE_TABLE_IGNORE_CHANGES")
    assert f"silver.{name}" in str(refusal.value)
    assert stored_values(copy_table(name)) == [1]


def test_a_source_table_that_was_deleted_and_made_anew_is_refused(append, run_once, name):
    append(f"bronze.{name}", [{"a": 1}], ROW)
    run_once(copy_table(name))
    remove_tree(locations.table_path(f"bronze.{name}"))
    append(f"bronze.{name}", [{"a": 2}], ROW)
    with pytest.raises(FlowBroken) as refusal:
        run_once(copy_table(name))
    assert refusal.value.error == "DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE"
    assert stored_values(copy_table(name)) == [1]


def test_a_data_file_of_the_source_that_is_gone_is_named(append, run_once, name):
    append(f"bronze.{name}", [{"a": 1}], ROW)
    for file in locations.table_path(f"bronze.{name}").glob("*.parquet"):
        file.unlink()
    with pytest.raises(FlowBroken, match=f"silver.{name}.*parquet") as refusal:
        run_once(copy_table(name))
    assert refusal.value.error == "FAILED_READ_FILE.FILE_NOT_EXIST"


def test_a_column_the_source_gets_while_it_is_read_lets_the_flow_go_on_at_once(append, driver, spark, name):
    append(f"bronze.{name}", [{"a": 1}], ROW)
    table = copy_table(name, interval_seconds=0.5)
    with driver(table, is_supervised=False):
        wait_for_rows(table, 1)
        spark.sql(f"ALTER TABLE delta.`{locations.table_path(f'bronze.{name}')}` ADD COLUMNS (b INT)")
        append(f"bronze.{name}", [{"a": 2, "b": 3}], "a INT, b INT")
        wait_for_rows(table, 2)
    assert stored_values(table) == [1, 2]


def test_a_value_the_transform_cannot_cast_needs_a_person(append, run_once, name):
    append(f"bronze.{name}", [{"t": "x"}], "t STRING")
    table = copy_table(name, transform=lambda rows: rows.selectExpr("CAST(t AS INT) AS a"))
    with pytest.raises(FlowBroken, match=f"silver.{name}: .*CAST_INVALID_INPUT") as refusal:
        run_once(table)
    assert refusal.value.error == "CAST_INVALID_INPUT"
    run_once(replace(table, transform=lambda rows: rows.selectExpr("try_cast(t AS INT) AS a")))
    assert stored_values(table) == [None]
