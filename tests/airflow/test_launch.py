"""The Airflow connection selects the launcher."""

import json
from typing import Any

import pytest

from include.airflow.launchers.kubernetes import Kubernetes
from include.airflow.launchers.launch import launcher, launcher_of
from include.airflow.launchers.standalone import Standalone
from include.airflow.launchers.submit import Local
from include.airflow.launchers.yarn import Yarn
from include.errors import UsageError

CLUSTER = {"deploy-mode": "cluster"}


@pytest.fixture
def connect(monkeypatch):
    """Store the Airflow connection `spark_default`."""

    def store_connection(**fields: Any) -> None:
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", **fields}))

    return store_connection


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"host": "local[*]"}, Local("local[*]")),
        ({"host": "spark://m", "port": 7077}, Local("spark://m:7077")),
        ({"host": "m", "port": 7077}, Local("spark://m:7077")),
        ({"host": "yarn", "extra": {"deploy-mode": "client", "queue": "q"}}, Local("yarn", ("--queue", "q"))),
        (
            {"host": "k8s://https://m", "port": 6443, "extra": {"namespace": "n"}},
            Local("k8s://https://m:6443", ("--conf", "spark.kubernetes.namespace=n")),
        ),
        ({"host": "spark://m", "port": 7077, "extra": CLUSTER}, Standalone("spark://m:7077", "http://m:6066")),
        (
            {"host": "spark://m", "port": 7077, "extra": {**CLUSTER, "rest-port": "6067", "rest-scheme": "https"}},
            Standalone("spark://m:7077", "https://m:6067"),
        ),
        (
            {"host": "spark://m", "port": 7077, "password": "key", "extra": CLUSTER},
            Standalone("spark://m:7077", "http://m:6066", "key"),
        ),
        (
            {"host": "k8s://https://m", "port": 6443, "extra": {**CLUSTER, "namespace": "n"}},
            Kubernetes("k8s://https://m:6443", "n"),
        ),
        (
            {"host": "yarn", "extra": {**CLUSTER, "resource-manager": "http://m:8088/", "queue": "q"}},
            Yarn("http://m:8088", "q"),
        ),
    ],
)
def test_the_launcher_is_the_one_that_the_connection_asks_for(connect, fields: dict[str, Any], expected: Any):
    connect(**fields)
    assert launcher() == expected


def test_a_missing_connection_is_refused_instead_of_going_to_yarn(monkeypatch):
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    with pytest.raises(UsageError, match="airflow connections add spark_default --conn-type spark"):
        launcher()


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, "'spark_default' has no host: set it to a Spark master"),
        ({"host": "yarn", "extra": CLUSTER}, "selects YARN, and does not say where it answers: add resource-manager"),
        ({"host": "local[*]", "extra": {"deploy-mode": "custer"}}, "has deploy-mode 'custer' in its extra: set it to"),
        ({"host": "local[*]", "extra": CLUSTER}, r"the host 'local\[\*\]', which is no cluster: set the host to"),
    ],
)
def test_a_connection_that_asks_for_nothing_that_exists_is_refused(connect, fields: dict[str, Any], sentence: str):
    connect(**fields)
    with pytest.raises(UsageError, match=sentence):
        launcher()


@pytest.mark.parametrize(
    ("handle", "expected"),
    [
        ({"pid": 1}, Local("")),
        ({"submission": "driver-7", "rest": "http://m:6066"}, Standalone("", "http://m:6066")),
        ({"master": "k8s://https://m", "namespace": "n", "pod": "p"}, Kubernetes("k8s://https://m")),
        ({"tag": "t", "resource_manager": "http://m:8088"}, Yarn("http://m:8088")),
        # Of an earlier release.
        ({"name": "t"}, Yarn("http://other")),
    ],
)
def test_a_driver_is_asked_for_where_it_was_started_also_after_the_connection_has_changed(handle, expected):
    assert launcher_of(json.dumps(handle), Yarn("http://other")) == expected
