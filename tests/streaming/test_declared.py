"""The storage options of a table file are applied when the table is created, and whenever they change."""

from dataclasses import replace

import pytest
from deltalake import DeltaTable

from include.catalog import Catalog
from include.control.store import database
from include.delta.delta_log import DeltaLog
from include.engine.tables import create_table, maintain
from include.errors import FlowBroken
from include.flows.batches import commit_kind
from include.lake import locations
from include.maintenance import table_survey
from include.maintenance.plan import OPTIMIZE
from include.settings import settings
from include.spec import Delta, Expect, Maintenance, Table
from tests.support.flows import only_in_full_runs, rows_of
from tests.support.waiting import wait_until

SMALL = Maintenance(target_file_mb=0.01, time_travel_hours=0.05)


def table(name: str, **overrides) -> Table:
    arguments = {
        "comment": "what it's about",
        "schema": "id BIGINT COMMENT 'its \\'number\\'', day DATE, text STRING COMMENT 'as it came'",
        **overrides,
    }
    return Table(name=f"silver.{name}", source=Delta(f"bronze.{name}"), maintain=SMALL, **arguments)


def delta_table(table: Table) -> DeltaTable:
    return DeltaTable(str(locations.table_path(table.name)))


def comments(table: Table) -> dict[str, str]:
    return {field.name: field.metadata.get("comment", "") for field in delta_table(table).schema().fields}


def properties(table: Table) -> dict[str, str]:
    return delta_table(table).metadata().configuration


def test_an_older_table_gets_the_default_that_it_lacks_and_keeps_what_was_set_by_hand(spark, name):
    interval = "delta.checkpointInterval"
    for suffix, manual_value in (("a", None), ("b", "30")):
        old_table = table(f"{name}{suffix}")
        create_table.create(spark, old_table)
        spark.sql(f"ALTER TABLE {old_table.name} UNSET TBLPROPERTIES ('{interval}')")
        if manual_value:
            spark.sql(f"ALTER TABLE {old_table.name} SET TBLPROPERTIES ('{interval}' = '{manual_value}')")
        create_table.create(spark, old_table)
        assert properties(old_table)[interval] == (manual_value or "100")


def test_what_a_stored_table_lacks_is_named_in_the_log_before_it_is_changed(spark, name, caplog):
    old_table = table(name, expect=(Expect("has id", "id IS NOT NULL", otherwise="quarantine"),))
    create_table.create(spark, old_table)
    spark.sql(f"ALTER TABLE {old_table.name} UNSET TBLPROPERTIES ('delta.checkpointInterval')")

    def refuse(statement: str) -> None:
        raise AssertionError

    version = DeltaLog(locations.table_path(old_table.name)).newest
    caplog.clear()
    with pytest.raises(AssertionError):
        create_table.create(spark, old_table, refuse)
    statement = f"ALTER TABLE {old_table.name} SET TBLPROPERTIES ('delta.checkpointInterval' = '100')"
    assert [record.getMessage() for record in caplog.records if record.name == "sluice"] == [
        f"{old_table.name}: what is stored is changed: {statement}"
    ]
    assert DeltaLog(locations.table_path(old_table.name)).newest == version
    create_table.create(spark, old_table)
    caplog.clear()
    create_table.create(spark, old_table)
    assert [record for record in caplog.records if record.name == "sluice"] == []


def test_comments_owner_and_properties_arrive_in_the_table_and_follow_its_file(spark, name):
    first_table = table(name, owner="team-x", properties={"delta.checkpointInterval": "50", "my.own": "it's"})
    create_table.create(spark, first_table)
    assert delta_table(first_table).metadata().description == "what it's about"
    assert comments(first_table) == {"id": "its 'number'", "day": "", "text": "as it came"}
    assert properties(first_table).items() >= {
        ("sluice.owner", "team-x"),
        ("delta.checkpointInterval", "50"),
        ("my.own", "it's"),
        ("delta.appendOnly", "false"),
    }
    version = delta_table(first_table).version()
    create_table.create(spark, first_table)
    assert delta_table(first_table).version() == version, "nothing differs, so nothing is committed"
    second_table = table(
        name,
        comment="another",
        schema="id BIGINT, day DATE COMMENT 'of the \\\\ year', text STRING COMMENT 'as it came', m INT COMMENT 'new'",
        owner="team-y",
        properties={"delta.checkpointInterval": "70", "delta.appendOnly": "true"},
    )
    create_table.create(spark, second_table)
    assert delta_table(second_table).metadata().description == "another"
    assert comments(second_table) == {"id": "", "day": "of the \\ year", "text": "as it came", "m": "new"}
    changed_properties = properties(second_table)
    assert (changed_properties["sluice.owner"], changed_properties["delta.checkpointInterval"]) == ("team-y", "70")
    assert "my.own" not in changed_properties and changed_properties["delta.appendOnly"] == "true"
    third_table = replace(second_table, owner=None, properties={})
    create_table.create(spark, third_table)
    remaining_properties = properties(third_table)
    assert remaining_properties["delta.appendOnly"] == "false", "what Sluice sets comes back"
    assert remaining_properties["delta.checkpointInterval"] == "100"
    assert not {"sluice.owner", "sluice.properties", "my.own"} & set(remaining_properties)
    version = delta_table(third_table).version()
    create_table.create(spark, third_table)
    assert delta_table(third_table).version() == version
    # Others are by nobody Sluice knows, and `verify` compares no total any more.
    commits = list(DeltaLog(locations.table_path(third_table.name)).commits())
    assert {commit.operation for commit in commits if commit_kind(commit) != "declaration"} == set()
    assert "CHANGE COLUMN" in {commit.operation for commit in commits}


def test_a_start_asks_spark_nothing_about_a_table_that_is_stored_as_its_file_says(spark, name):
    definition = table(
        name, owner="team-x", properties={"my.own": "it's"}, expect=(Expect("dated", "day IS NOT NULL"),)
    )
    create_table.create(spark, definition)
    create_table.create(None, definition)
    create_table.create(None, replace(definition, properties={"my.own": "it's"}, expect=()))


def test_a_change_feed_that_nobody_reads_any_more_stays_on(spark, name):
    create_table.create(spark, table(name, properties={"delta.enableChangeDataFeed": "true"}))
    create_table.create(spark, table(name))
    assert properties(table(name))["delta.enableChangeDataFeed"] == "true"


@pytest.mark.parametrize("column", ["s INT NOT NULL", "s STRUCT<t: STRUCT<a: INT NOT NULL>>"])
def test_a_new_column_that_is_not_null_anywhere_is_refused_with_what_to_do(spark, name, column):
    create_table.create(spark, table(name))
    with pytest.raises(FlowBroken, match="column 's' is new and NOT NULL, or a field of it is, .*: declare it without"):
        create_table.create(spark, replace(table(name), schema=f"{table(name).schema}, {column}"))


@pytest.mark.parametrize(
    ("was", "now", "words"), [((), ("day",), "nothing and .* by day"), (("day",), (), "day and .* by nothing")]
)
def test_another_partitioning_is_refused(spark, name, was: tuple, now: tuple, words: str):
    create_table.create(spark, table(name, partition_by=was))
    with pytest.raises(FlowBroken, match=f"stored partitioned by {words}: declare it as it is stored"):
        create_table.create(spark, table(name, partition_by=now))


def clustering_columns(spark, definition: Table) -> list[str]:
    path = locations.table_path(definition.name)
    return spark.sql(f"DESCRIBE DETAIL delta.`{path}`").first()["clusteringColumns"]


def plan(definition: Table):
    survey = table_survey.survey(
        database.connect(settings().control_url), definition, Catalog({definition.name: definition})
    )[0]
    return survey.plan.step(OPTIMIZE), survey


def arrive(spark, name: str, begin: int, end: int, day: str = "2026-03-01") -> None:
    """Appends one file of rows to bronze."""
    rows = spark.range(begin, end, 1, 1).selectExpr("id", f"DATE'{day}' AS day", "md5(CAST(id AS STRING)) AS text")
    rows.write.format("delta").mode("append").save(str(locations.table_path(f"bronze.{name}")))


def test_clustering_arrives_follows_its_file_and_is_what_compaction_does(spark, run_once, name):
    clustered_table = table(name, cluster_by=("id",))
    arrive(spark, name, 0, 3_000)
    run_once(clustered_table)
    assert clustering_columns(spark, clustered_table) == ["id"]
    step, _ = plan(clustered_table)
    assert step.is_worth_it and "not clustered yet" in step.why
    maintain.compact(spark, clustered_table.name, step, {"a": "test"})
    step, survey = plan(clustered_table)
    assert not step.is_worth_it
    assert all(file.is_clustered for file in survey.log.state.live)
    # A later compaction does not rewrite files that are clustered.
    clustered_files = {file.path for file in survey.log.state.live}
    arrive(spark, name, 3_000, 6_000)
    run_once(clustered_table)
    step, _ = plan(clustered_table)
    maintain.compact(spark, clustered_table.name, step, {"a": "test"})
    assert clustered_files <= {file.path for file in plan(clustered_table)[1].log.state.live}
    # delta-rs must be able to read the clustered table.
    assert sorted(row["id"] for row in rows_of(clustered_table.name)) == list(range(6_000))
    for columns in (("day", "id"), ()):
        create_table.create(spark, table(name, cluster_by=columns))
        assert clustering_columns(spark, clustered_table) == list(columns)


@only_in_full_runs
def test_a_table_without_clustering_can_be_clustered_later(spark, name):
    create_table.create(spark, table(name))
    create_table.create(spark, table(name, cluster_by=("day",)))
    assert clustering_columns(spark, table(name)) == ["day"]


@only_in_full_runs
def test_a_partitioned_table_is_written_compacted_and_vacuumed_partition_by_partition(spark, run_once, name):
    partitioned_table = table(name, partition_by=("day",))
    path = locations.table_path(partitioned_table.name)
    arrive(spark, name, 0, 30, "2026-03-01")
    arrive(spark, name, 30, 60, "2026-03-02")
    run_once(partitioned_table)
    assert delta_table(partitioned_table).metadata().partition_columns == ["day"]
    assert sorted(entry.name for entry in path.glob("day=*")) == ["day=2026-03-01", "day=2026-03-02"]
    rows = spark.range(60, 420, 1, 12).selectExpr("id", "DATE'2026-03-02' AS day", "md5(CAST(id AS STRING)) AS text")
    rows.write.format("delta").mode("append").save(str(path))
    step, survey_before = plan(partitioned_table)
    assert step.is_worth_it
    assert step.partitions == ("day=2026-03-02",)
    maintain.compact(spark, partitioned_table.name, step, {"a": "test"})
    _, survey_after = plan(partitioned_table)
    numbers = step.numbers
    assert len(survey_after.log.state.live) == 14 - numbers["files_rewritten"] + numbers["files_written"]
    assert {file.path for file in survey_before.log.state.live if "03-01" in file.path} <= {
        file.path for file in survey_after.log.state.live
    }
    removed_files = [path / file.path for file in survey_after.log.state.tombstones]
    assert len(removed_files) == numbers["files_rewritten"] and all(file.exists() for file in removed_files)
    # VACUUM keeps removed files for the promised time.
    maintain.vacuum(spark, partitioned_table.name, survey_after.retention_seconds, {"a": "test"})
    assert all(file.exists() for file in removed_files)

    def is_deleted() -> bool:
        maintain.vacuum(spark, partitioned_table.name, 0.001, {"a": "test"})
        return not any(file.exists() for file in removed_files)

    wait_until(is_deleted, 60)
    assert sorted(row["id"] for row in rows_of(partitioned_table.name)) == list(range(420))
