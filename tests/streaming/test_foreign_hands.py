"""What others do to a table by hand: a RESTORE is named with the way out, and a foreign table is not taken over."""

import pytest

from include.control import commands
from include.control.commands import Action, Command
from include.control.store import database
from include.delta import stored_table
from include.engine.fast_path.transaction import Target
from include.errors import FlowBroken
from include.lake import locations
from include.settings import settings
from include.spec import Delta, Flow, Table
from tests.support.batches import BatchWriter
from tests.support.flows import rows_of

SCHEMA = "number INT"


@pytest.fixture
def table(name) -> Table:
    return Flow(name=f"silver.{name}", comment="numbers", source=Delta(f"bronze.{name}"), schema=SCHEMA)


def numbers(table: Table) -> list[int]:
    return sorted(row["number"] for row in rows_of(table.name))


def restore(spark, table: Table, version: int) -> None:
    spark.sql(f"RESTORE delta.`{locations.table_path(table.name)}` TO VERSION AS OF {version}")


def test_a_flow_does_not_go_on_behind_a_restore_by_hand_and_a_reset_brings_back_what_it_took(
    name, table, append, run_once, spark
):
    for number in range(3):
        append(f"bronze.{name}", [{"number": number}], SCHEMA)
        run_once(table)
    restore(spark, table, 1)
    assert numbers(table) == [0]
    append(f"bronze.{name}", [{"number": 3}], SCHEMA)
    with pytest.raises(FlowBroken, match="restored its table by a RESTORE, .* behind batch 1/0: action reset") as error:
        run_once(table)
    assert error.value.error == "TABLE_RESTORED"
    assert numbers(table) == [0]
    engine = database.connect(settings().control_url)
    commands.execute(engine, Command(Action.RESET_CHECKPOINT, (table.flow,), "ada", "a test"))
    run_once(table)
    assert numbers(table) == [0, 1, 2, 3]


def test_a_running_flow_notices_a_restore_before_its_next_commit_on_both_paths(table, spark, tmp_path):
    writer = BatchWriter(spark, tmp_path, SCHEMA)
    writer.write(table, [(0,)])
    writer.context = writer.new_context(table)
    writer.write(table, [(1,)])
    spark.sql(f"OPTIMIZE delta.`{locations.table_path(table.name)}`")
    writer.write(table, [(2,)])
    target = Target(spark, table.name)
    target.note(stored_table.open_table(table.name).version())
    target.begin()
    restore(spark, table, 2)
    for write in (lambda: writer.write(table, [(3,)]), target.begin):
        with pytest.raises(FlowBroken, match="somebody has restored its table") as error:
            write()
        assert error.value.error == "TABLE_RESTORED"
    assert numbers(table) == [0, 1]


def test_a_table_that_somebody_else_has_made_is_refused_until_it_is_handed_over(name, table, append, run_once, spark):
    append(f"bronze.{name}", [{"number": 1}], SCHEMA)
    append(table.name, [{"number": 7}], SCHEMA)
    with pytest.raises(
        FlowBroken, match="holds a table of 1 rows that Sluice did not create: move it away, or"
    ) as error:
        run_once(table)
    assert error.value.error == "FOREIGN_TABLE"
    assert numbers(table) == [7]
    statement = str(error.value).partition("(")[2].partition(") and restart")[0]
    spark.sql(statement)
    run_once(table)
    assert numbers(table) == [1, 7]
