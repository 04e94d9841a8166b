"""What a table file says of how its table is stored arrives in the table: at first, and when it changes."""

from dataclasses import replace

import pytest
from deltalake import DeltaTable

from include.catalog import Catalog
from include.control.store import database
from include.engine.tables import create_table, maintain
from include.errors import FlowBroken
from include.maintenance import table_state
from include.maintenance.plan import OPTIMIZE
from include.settings import settings
from include.spec import Delta, Expect, Maintenance, Table
from tests.support.flows import only_in_full_runs, rows_of
from tests.support.waiting import wait_until

SMALL = Maintenance(target_file_mb=0.01, time_travel_hours=0.05)


def table(name: str, **more) -> Table:
    declared = {
        "comment": "what it's about",
        "schema": "id BIGINT COMMENT 'its \\'number\\'', day DATE, text STRING COMMENT 'as it came'",
        **more,
    }
    return Table(name=f"silver.{name}", source=Delta(f"bronze.{name}"), maintain=SMALL, **declared)


def stored(table: Table) -> DeltaTable:
    return DeltaTable(str(settings().table_path(table.name)))


def comments(table: Table) -> dict[str, str]:
    return {field.name: field.metadata.get("comment", "") for field in stored(table).schema().fields}


def properties(table: Table) -> dict[str, str]:
    return stored(table).metadata().configuration


def test_an_older_table_gets_the_default_that_it_lacks_and_keeps_what_was_set_by_hand(spark, name):
    interval = "delta.checkpointInterval"
    for suffix, by_hand in (("a", None), ("b", "30")):
        older = table(f"{name}{suffix}")
        create_table.create(spark, older)
        spark.sql(f"ALTER TABLE {older.name} UNSET TBLPROPERTIES ('{interval}')")
        if by_hand:
            spark.sql(f"ALTER TABLE {older.name} SET TBLPROPERTIES ('{interval}' = '{by_hand}')")
        create_table.create(spark, older)
        assert properties(older)[interval] == (by_hand or "100")


def test_comments_owner_and_properties_arrive_in_the_table_and_follow_its_file(spark, name):
    first = table(name, owner="team-x", properties={"delta.checkpointInterval": "50", "my.own": "it's"})
    create_table.create(spark, first)
    assert stored(first).metadata().description == "what it's about"
    assert comments(first) == {"id": "its 'number'", "day": "", "text": "as it came"}
    assert properties(first).items() >= {
        ("sluice.owner", "team-x"),
        ("delta.checkpointInterval", "50"),
        ("my.own", "it's"),
        ("delta.appendOnly", "false"),
    }
    version = stored(first).version()
    create_table.create(spark, first)
    assert stored(first).version() == version, "nothing differs, so nothing is committed"
    second = table(
        name,
        comment="another",
        schema="id BIGINT, day DATE COMMENT 'of the \\\\ year', text STRING COMMENT 'as it came', m INT COMMENT 'new'",
        owner="team-y",
        properties={"delta.checkpointInterval": "70", "delta.appendOnly": "true"},
    )
    create_table.create(spark, second)
    assert stored(second).metadata().description == "another"
    assert comments(second) == {"id": "", "day": "of the \\ year", "text": "as it came", "m": "new"}
    changed = properties(second)
    assert (changed["sluice.owner"], changed["delta.checkpointInterval"]) == ("team-y", "70")
    assert "my.own" not in changed and changed["delta.appendOnly"] == "true"
    third = replace(second, owner=None, properties={})
    create_table.create(spark, third)
    left = properties(third)
    assert left["delta.appendOnly"] == "false", "what Sluice sets comes back"
    assert left["delta.checkpointInterval"] == "100"
    assert not {"sluice.owner", "sluice.properties", "my.own"} & set(left)
    version = stored(third).version()
    create_table.create(spark, third)
    assert stored(third).version() == version


def test_a_start_asks_spark_nothing_about_a_table_that_is_stored_as_its_file_says(spark, name):
    declared = table(name, owner="team-x", properties={"my.own": "it's"}, expect=(Expect("dated", "day IS NOT NULL"),))
    create_table.create(spark, declared)
    create_table.create(None, declared)
    create_table.create(None, replace(declared, properties={"my.own": "it's"}, expect=()))


def test_a_change_feed_that_nobody_reads_any_more_stays_on(spark, name):
    create_table.create(spark, table(name, properties={"delta.enableChangeDataFeed": "true"}))
    create_table.create(spark, table(name))
    assert properties(table(name))["delta.enableChangeDataFeed"] == "true"


@pytest.mark.parametrize(
    ("was", "now", "words"), [((), ("day",), "nothing and .* by day"), (("day",), (), "day and .* by nothing")]
)
def test_another_partitioning_is_refused(spark, name, was: tuple, now: tuple, words: str):
    create_table.create(spark, table(name, partition_by=was))
    with pytest.raises(FlowBroken, match=f"stored partitioned by {words}: declare it as it is stored"):
        create_table.create(spark, table(name, partition_by=now))


def clustered_by(spark, one: Table) -> list[str]:
    path = settings().table_path(one.name)
    return spark.sql(f"DESCRIBE DETAIL delta.`{path}`").first()["clusteringColumns"]


def plan(one: Table):
    found = table_state.survey(database.connect(settings().control_url), one, Catalog({one.name: one}))[0]
    return found.plan.step(OPTIMIZE), found


def arrive(spark, name: str, begin: int, end: int, day: str = "2026-03-01") -> None:
    """One file of rows."""
    rows = spark.range(begin, end, 1, 1).selectExpr("id", f"DATE'{day}' AS day", "md5(CAST(id AS STRING)) AS text")
    rows.write.format("delta").mode("append").save(str(settings().table_path(f"bronze.{name}")))


def test_clustering_arrives_follows_its_file_and_is_what_compaction_does(spark, run_once, name):
    one = table(name, cluster_by=("id",))
    arrive(spark, name, 0, 3_000)
    run_once(one)
    assert clustered_by(spark, one) == ["id"]
    step, _ = plan(one)
    assert step.is_worth_it and "not clustered yet" in step.why
    maintain.compact(spark, one.name, step, {"a": "test"})
    step, found = plan(one)
    assert not step.is_worth_it
    assert all(file.is_clustered for file in found.log.state.live)
    # What comes later does not make it write again what is done.
    done = {file.path for file in found.log.state.live}
    arrive(spark, name, 3_000, 6_000)
    run_once(one)
    step, _ = plan(one)
    maintain.compact(spark, one.name, step, {"a": "test"})
    assert done <= {file.path for file in plan(one)[1].log.state.live}
    # delta-rs reads it.
    assert sorted(row["id"] for row in rows_of(one.name)) == list(range(6_000))
    for columns in (("day", "id"), ()):
        create_table.create(spark, table(name, cluster_by=columns))
        assert clustered_by(spark, one) == list(columns)


@only_in_full_runs
def test_a_table_without_clustering_can_be_clustered_later(spark, name):
    create_table.create(spark, table(name))
    create_table.create(spark, table(name, cluster_by=("day",)))
    assert clustered_by(spark, table(name)) == ["day"]


@only_in_full_runs
def test_a_partitioned_table_is_written_compacted_and_vacuumed_partition_by_partition(spark, run_once, name):
    one = table(name, partition_by=("day",))
    path = settings().table_path(one.name)
    arrive(spark, name, 0, 30, "2026-03-01")
    arrive(spark, name, 30, 60, "2026-03-02")
    run_once(one)
    assert stored(one).metadata().partition_columns == ["day"]
    assert sorted(entry.name for entry in path.glob("day=*")) == ["day=2026-03-01", "day=2026-03-02"]
    more = spark.range(60, 420, 1, 12).selectExpr("id", "DATE'2026-03-02' AS day", "md5(CAST(id AS STRING)) AS text")
    more.write.format("delta").mode("append").save(str(path))
    step, before = plan(one)
    assert step.is_worth_it
    assert step.partitions == ("day=2026-03-02",)
    maintain.compact(spark, one.name, step, {"a": "test"})
    _, after = plan(one)
    numbers = step.numbers
    assert len(after.log.state.live) == 14 - numbers["files_rewritten"] + numbers["files_written"]
    assert {file.path for file in before.log.state.live if "03-01" in file.path} <= {
        file.path for file in after.log.state.live
    }
    gone = [path / file.path for file in after.log.state.tombstones]
    assert len(gone) == numbers["files_rewritten"] and all(file.exists() for file in gone)
    # What was removed a moment ago stays for as long as it is promised.
    maintain.vacuum(spark, one.name, after.retention_seconds, {"a": "test"})
    assert all(file.exists() for file in gone)

    def is_deleted() -> bool:
        maintain.vacuum(spark, one.name, 0.001, {"a": "test"})
        return not any(file.exists() for file in gone)

    wait_until(is_deleted, 60)
    assert sorted(row["id"] for row in rows_of(one.name)) == list(range(420))
