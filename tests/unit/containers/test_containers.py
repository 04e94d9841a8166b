"""What the first processes of containers write, and how they end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import javaproperties
import pytest

from include.containers import entry, examples, mounted, spark_pods
from include.containers.kafka import Node
from include.errors import SluiceError
from tests.conftest import ROOT

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


def test_a_file_of_a_mounted_secret_is_a_variable_if_its_name_is_one(tmp_path: Path):
    # As Kubernetes mounts a secret: links into a directory with another name at each change.
    versions = tmp_path / "database" / "..2026_01_01"
    versions.mkdir(parents=True)
    for name, text in {"PGPASSWORD": "a\n b\n", "client.properties": "sasl.jaas.config=c", "auth-secret": "d"}.items():
        (versions / name).write_text(text)
        (tmp_path / "database" / name).symlink_to(Path("..data", name))
    (tmp_path / "database" / "..data").symlink_to(versions.name)
    (tmp_path / "storage").mkdir()
    (tmp_path / "storage" / "AWS_ACCESS_KEY_ID").write_text("e")
    assert mounted.read(tmp_path) == {"PGPASSWORD": "a\n b", "AWS_ACCESS_KEY_ID": "e"}


def test_a_command_has_the_mounted_secrets_as_variables_and_in_those_that_name_one(tmp_path: Path):
    # As Compose mounts secrets. An empty file is one that nobody has given a value.
    for name, text in {"PASSWORD_OF_A": "1/=+$", "KEY_OF_B": "2", "AWS_SECRET_ACCESS_KEY": "", "notes": "3"}.items():
        (tmp_path / name).write_text(text)
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "SLUICE_SECRETS": str(tmp_path),
        "URL": "db://a:${PASSWORD_OF_A}@host/${KEY_OF_B}",
        "OTHER": "${HOME} $KEY_OF_B ${notes}",
    }
    program = "import json, os; print(json.dumps(dict(os.environ)))"
    command = [sys.executable, "-m", "include.containers.mounted", sys.executable, "-c", program]
    seen = json.loads(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    added = {"PASSWORD_OF_A": "1/=+$", "KEY_OF_B": "2", "URL": "db://a:1/=+$@host/2"}
    assert {name: value for name, value in seen.items() if environment.get(name) != value}.items() >= added.items()
    assert seen["OTHER"] == environment["OTHER"]
    assert not {"AWS_SECRET_ACCESS_KEY", "notes"} & seen.keys()


def test_the_first_process_creates_the_directory_that_the_volume_of_a_driver_is_mounted_on(tmp_path: Path):
    variables = {**os.environ, "SLUICE_HOME": str(tmp_path), "SPARK_CONF_DIR": str(tmp_path / "conf")}
    subprocess.run([sys.executable, "-m", "include.containers.entry", "true"], env=variables, cwd=ROOT, check=True)
    assert (tmp_path / "checkpoints").is_dir()


def test_the_configuration_of_spark_begins_with_the_file_that_a_variable_names(tmp_path: Path):
    (tmp_path / "own.conf").write_text("spark.kubernetes.namespace streams")
    entry.write_spark(tmp_path / "conf", {"SLUICE_SPARK_DEFAULTS": str(tmp_path / "own.conf")})
    settings = defaults(tmp_path / "conf" / "spark-defaults.conf")
    assert settings["spark.kubernetes.namespace"] == "streams"
    assert "spark.deploy.recoveryMode" not in settings
    assert "-XX:+UseSerialGC" in settings["spark.driver.extraJavaOptions"]


def test_a_pod_of_spark_becomes_what_spark_asks_for():
    words = ["--properties-file", "/opt/spark/conf/spark.properties", "local:///job.py", "--driver", "main"]
    command = spark_pods.driver(words, {"SPARK_DRIVER_BIND_ADDRESS": "10.0.0.7"})
    assert command[:3] == ["spark-submit", "--deploy-mode", "client"]
    assert "spark.driver.bindAddress=10.0.0.7" in command
    assert command[-len(words) :] == words

    options = {f"SPARK_JAVA_OPT_{number}": f"-Dnumber={number}" for number in (10, 9, 0)}
    command = spark_pods.executor(
        [],
        {
            **options,
            "SPARK_CLASSPATH": "/opt/jars/spark/*",
            "SPARK_EXECUTOR_MEMORY": "768m",
            "SPARK_DRIVER_URL": "spark://driver",
            "SPARK_EXECUTOR_ID": "1",
            "SPARK_EXECUTOR_CORES": "2",
            "SPARK_APPLICATION_ID": "spark-7",
            "SPARK_EXECUTOR_POD_IP": "10.0.0.8",
            "SPARK_RESOURCE_PROFILE_ID": "0",
            "SPARK_EXECUTOR_POD_NAME": "main-exec-1",
        },
    )
    assert command[1:5] == ["-Dnumber=0", "-Dnumber=9", "-Dnumber=10", "-Dspark.master=k8s://driver"]
    assert {"-Xms768m", "-Xmx768m"} <= {*command}
    class_path = command[command.index("-cp") + 1].split(":")
    assert class_path[0] == "/opt/jars/spark/*"
    assert class_path[1].endswith("/pyspark/jars/*")
    assert command[command.index("--hostname") + 1] == "10.0.0.8"
