"""What the first processes of containers write, and how they end."""

import subprocess
import sys
from pathlib import Path

import javaproperties
import pytest

from include.containers import entry, examples
from include.containers.kafka import Node
from include.errors import SluiceError

SECRETS = {"SPARK_AUTH_SECRET": "auth-secret", "SPARK_REST_KEY": "rest-key="}


def defaults(file: Path) -> dict[str, str]:
    return javaproperties.loads(file.read_text())


def test_the_configuration_of_spark_has_the_secrets_that_the_container_knows_and_is_private(tmp_path: Path):
    entry.write_spark(tmp_path, {**SECRETS, "OTHER": "x"})
    file = tmp_path / "spark-defaults.conf"
    assert file.stat().st_mode & 0o777 == 0o600
    settings = defaults(file)
    assert settings["spark.authenticate.secret"] == "auth-secret"
    assert settings["spark.org.apache.spark.ui.JWSFilter.param.secretKey"] == "rest-key="
    assert settings["spark.ui.killEnabled"] == "false"
    assert "-XX:+UseSerialGC" in settings["spark.driver.extraJavaOptions"]

    entry.write_spark(tmp_path, {})
    assert not {"spark.authenticate.secret", "spark.org.apache.spark.ui.JWSFilter.param.secretKey"} & {*defaults(file)}


def test_each_broker_has_its_number_and_address_and_the_voters_of_all(tmp_path: Path):
    nodes = [
        Node(tmp_path, tmp_path, tmp_path, 9092, 9093, number=number, cluster_id="-id-of-all") for number in (1, 2, 3)
    ]
    configurations = [javaproperties.loads(node.configuration()) for node in nodes]
    assert [one["node.id"] for one in configurations] == ["1", "2", "3"]
    voters = configurations[0]["controller.quorum.voters"].split(",")
    for number, one in enumerate(configurations, 1):
        assert one["advertised.listeners"] == f"PLAINTEXT://kafka-{number}:9092"
        assert f"{number}@kafka-{number}:9093" in voters
    assert nodes[0].format_options() == ["--cluster-id=-id-of-all"]


def test_a_feed_that_ends_ends_the_others(tmp_path: Path):
    sleeps = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    ends = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    processes = {"sleeps": sleeps, "ends": ends}
    examples.require({"sleeps": sleeps})
    ends.wait(30)
    with pytest.raises(SluiceError, match="'ends' ended with code 3"):
        examples.require(processes)
    examples.stop(processes)
    assert sleeps.returncode is not None
