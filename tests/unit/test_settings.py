"""Settings from environment variables."""

from pathlib import Path

import pytest

from include.errors import UsageError
from include.lake import locations
from include.lake.paths import ObjectPath
from include.settings import (
    HALT_SECONDS,
    LEASE_CHECK_INTERVAL,
    LEASE_MARGIN,
    ROOT,
    catalog_variables,
    from_environment,
    kafka_variables,
)


def test_without_any_variable_everything_lies_below_var():
    config = from_environment({})
    assert config.home == ROOT / "var"
    assert config.jars == ROOT / "var" / "jars"
    assert config.kafka == "127.0.0.1:9092"
    assert config.control_url == f"sqlite:///{ROOT / 'var' / 'control.db'}"
    assert (config.airflow_port, config.lease_seconds) == (8080, 30)


def test_an_empty_variable_is_as_good_as_none():
    names = ("HOME", "JARS", "KAFKA", "CONTROL_URL", "AIRFLOW_PORT", "LEASE_SECONDS")
    assert from_environment({f"SLUICE_{name}": "" for name in names}) == from_environment({})


def test_moving_home_moves_what_lies_below_it(tmp_path: Path):
    config = from_environment({"SLUICE_HOME": str(tmp_path)})
    assert locations.table_path("gold.sums", config) == tmp_path / "lake" / "gold" / "sums"
    assert locations.checkpoints("gold.sums", config) == tmp_path / "checkpoints" / "gold.sums"
    assert config.logs == tmp_path / "log"
    assert config.control_url == f"sqlite:///{tmp_path / 'control.db'}"
    assert config.jars == tmp_path / "jars"


def test_another_lake_holds_tables_and_checkpoints_and_nothing_else(tmp_path: Path):
    for value, lake in {
        "s3a://bucket/a/b/": ObjectPath("bucket", "a/b"),
        "s3://bucket/a": ObjectPath("bucket", "a"),
        f"file://{tmp_path}/a%20b": tmp_path / "a b",
        str(tmp_path): tmp_path,
    }.items():
        config = from_environment({"SLUICE_LAKE": value, "SLUICE_HOME": "/home"})
        assert locations.table_path("gold.sums", config) == lake / "gold" / "sums"
        assert locations.checkpoints("gold.sums", config) == lake / "_checkpoints" / "gold.sums"
        assert config.logs == Path("/home/log")
    assert (
        str(locations.table_path("gold.sums", from_environment({"SLUICE_LAKE": "s3://bucket/a"})))
        == "s3a://bucket/a/gold/sums"
    )
    assert from_environment({"SLUICE_HOME": "/home", "SLUICE_LAKE": "/home/lake"}) == from_environment(
        {"SLUICE_HOME": "/home"}
    )


@pytest.mark.parametrize("value", ["gs://bucket/a", "s3a://bucket", "s3a:///a", "file://host/a", "s3a://bucket/a?b"])
def test_a_lake_that_is_no_place_is_refused(value: str):
    with pytest.raises(UsageError, match=r"^SLUICE_LAKE is '.*', which is no place for tables: set it to a path"):
        from_environment({"SLUICE_LAKE": value})


@pytest.mark.parametrize(
    ("name", "value", "place"),
    [
        ("SLUICE_LAKE", "s3a://AKIA:hush@bucket/lake", "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ("SLUICE_LANDING", "s3a://AKIA:hu/sh@bucket/files", "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ("AWS_ENDPOINT_URL", "http://ada:hush@store:9000", "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ("SLUICE_KAFKA", "ada:hush@kafka:9093,kafka:9094", "set SLUICE_KAFKA_CONFIG to a properties file"),
        (
            "SLUICE_SCHEMA_REGISTRY",
            "https://ada:hush@registry",
            "set SLUICE_SCHEMA_REGISTRY_CREDENTIALS to a file with USER:PASSWORD",
        ),
        ("OPENLINEAGE_URL", "https://hush@lineage:5000/api", "set OPENLINEAGE_API_KEY"),
        ("AWS_ENDPOINT_URL_GLUE", "http://ada:hush@glue:9000", "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    ],
)
def test_an_address_with_a_password_is_refused_without_showing_it(name: str, value: str, place: str):
    with pytest.raises(UsageError) as refusal:
        from_environment({name: value})
    assert str(refusal.value) == f"{name} has a user or a password: take it out, and {place}"


def test_addresses_and_paths_that_only_look_like_a_login_are_taken(tmp_path: Path):
    from_environment(
        {
            "SLUICE_LAKE": "s3a://bucket/team@eu",
            "SLUICE_LANDING": f"{tmp_path}/a:b@c",
            "AWS_ENDPOINT_URL": "http://store:9000/@s3",
            "SLUICE_KAFKA": "kafka-1:9093,kafka-2:9093",
        }
    )


def test_a_printed_setting_does_not_show_the_password_of_the_control_database():
    url = "postgresql+psycopg://ada:hush@db/control"
    config = from_environment({"SLUICE_CONTROL_URL": url})
    assert config.control_url == url and "hush" not in repr(config)


def test_a_relative_home_does_not_move_with_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert from_environment({"SLUICE_HOME": "here"}).home == (tmp_path / "here").resolve()


def test_each_variable_sets_its_setting():
    config = from_environment(
        {
            "SLUICE_JARS": "/elsewhere/jars",
            "SLUICE_KAFKA": "one:1,two:2",
            "SLUICE_CONTROL_URL": "postgresql://db/sluice",
            "SLUICE_AIRFLOW_PORT": "8181",
            "SLUICE_SQL_PORT": "10000",
            "SLUICE_LEASE_SECONDS": "7.5",
        }
    )
    assert config.jars == Path("/elsewhere/jars")
    assert config.kafka == "one:1,two:2"
    assert config.control_url == "postgresql://db/sluice"
    assert (config.airflow_port, config.lease_seconds) == (8181, 7.5)
    assert (config.sql_port, config.connect_port) == (10000, None)


def test_each_kafka_cluster_has_its_file_and_the_default_one_needs_no_address_beside_it():
    config = from_environment({"SLUICE_KAFKA_CONFIG": "/run/a", "SLUICE_KAFKA_EU_WEST_CONFIG": "/run/b"})
    assert (config.kafka, config.kafka_files) == ("", {"": Path("/run/a"), "eu_west": Path("/run/b")})
    variables = {"SLUICE_KAFKA_CONFIG": "/run/a", "SLUICE_KAFKA_EU_WEST_CONFIG": "/run/b"}
    assert kafka_variables(config) == variables
    config = from_environment({**variables, "SLUICE_KAFKA": "one:1", "SLUICE_KAFKA_US_CONFIG": ""})
    assert kafka_variables(config) == {**variables, "SLUICE_KAFKA": "one:1"}


@pytest.mark.parametrize("value", ["soon", "0", "-3", "1,5", "nan", "inf"])
def test_a_lease_that_is_no_number_above_0_is_refused_by_name_and_value(value: str):
    with pytest.raises(UsageError) as refusal:
        from_environment({"SLUICE_LEASE_SECONDS": value})
    assert str(refusal.value) == (
        f"SLUICE_LEASE_SECONDS is '{value}', which is not a number above 0: set it to one, or unset it for 30"
    )


@pytest.mark.parametrize("value", ["0.5", "5", "6.9"])
def test_a_lease_that_is_over_before_its_driver_has_ended_itself_is_refused(value: str):
    with pytest.raises(UsageError) as refusal:
        from_environment({"SLUICE_LEASE_SECONDS": value})
    assert str(refusal.value) == (
        f"SLUICE_LEASE_SECONDS is {value}, which leaves a driver too little time to end itself before its lease is "
        f"over: set it to 7 or more, or unset it for 30"
    )


def test_the_shortest_lease_leaves_its_driver_the_time_to_end_itself():
    shortest = from_environment({"SLUICE_LEASE_SECONDS": "7"}).lease_seconds
    assert shortest * (LEASE_MARGIN - LEASE_CHECK_INTERVAL) >= HALT_SECONDS


@pytest.mark.parametrize("value", ["http", "-1", "0", "0.5", "8080.7", "70000", "65536", "nan", "inf"])
def test_a_port_that_is_none_is_refused_by_name_and_value(value: str):
    with pytest.raises(UsageError) as refusal:
        from_environment({"SLUICE_AIRFLOW_PORT": value})
    assert str(refusal.value) == (
        f"SLUICE_AIRFLOW_PORT is '{value}', which is not a port from 1 to 65535: set it to one, or unset it for 8080"
    )


@pytest.mark.parametrize(
    ("names", "is_stored"),
    [
        ([], False),
        ([".00000000000000000000.json.3f.tmp", "_staged_commits"], False),
        (["00000000000000000000.json"], True),
        (["_last_checkpoint", "00000000000000000007.checkpoint.parquet"], True),
    ],
)
def test_a_table_whose_first_commit_was_killed_is_not_stored(tmp_path: Path, names: list[str], is_stored: bool):
    config = from_environment({"SLUICE_HOME": str(tmp_path)})
    assert not locations.is_stored("gold.view", config)
    log = locations.table_path("gold.view", config) / "_delta_log"
    log.mkdir(parents=True)
    for name in names:
        (log / name).touch()
    assert locations.is_stored("gold.view", config) is is_stored


@pytest.mark.parametrize(
    ("value", "layers", "prefix", "names"),
    [
        ("", "", None, ("silver", "gold")),
        ("glue", "", "", ("silver", "gold")),
        ("glue:sales_", "gold, bronze", "sales_", ("bronze", "gold")),
    ],
)
def test_a_catalog_is_named_with_a_prefix_and_layers(value: str, layers: str, prefix: str | None, names: tuple):
    config = from_environment({"SLUICE_CATALOG": value, "SLUICE_CATALOG_LAYERS": layers})
    assert (config.catalog_prefix, config.catalog_layers) == (prefix, names)
    assert from_environment({"SLUICE_HOME": str(config.home), **catalog_variables(config)}) == config


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        (
            "SLUICE_CATALOG",
            "unity",
            "SLUICE_CATALOG is 'unity': set it to glue, or to glue:PREFIX for names of databases",
        ),
        ("SLUICE_CATALOG", "glue:Sales", "SLUICE_CATALOG is 'glue:Sales': set it to glue, or to glue:PREFIX"),
        ("SLUICE_CATALOG_LAYERS", "golden", "SLUICE_CATALOG_LAYERS is 'golden': name some of bronze, silver and gold"),
    ],
)
def test_a_catalog_that_cannot_be_named_is_refused(name: str, value: str, sentence: str):
    with pytest.raises(UsageError) as refusal:
        from_environment({name: value})
    assert str(refusal.value).startswith(sentence)
