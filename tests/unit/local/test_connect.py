"""What a worker of Kafka Connect is told, as its files and its command show."""

from pathlib import Path

import javaproperties
import pytest

from include.errors import SetupError
from include.kafka import cluster
from include.local import java
from include.local.connect import Worker
from include.settings import settings

SECRET = "of-great-value"


@pytest.fixture
def worker(tmp_path: Path, monkeypatch) -> Worker:
    """A worker of a cluster with a password."""
    file = tmp_path / "eu.properties"
    file.write_text(
        "bootstrap.servers=kafka.example:9093\nsecurity.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required password="{SECRET}";\n'
    )
    monkeypatch.setenv("SLUICE_KAFKA_EU_CONFIG", str(file))
    settings.cache_clear()
    yield Worker(
        directory=tmp_path / "Zoë's worker",
        jars=settings().jars,
        java_home=java.home(),
        kafka=cluster.named("eu"),
        port=8083,
        connectors={"purchases": {"database.password": "${env:PASSWORD}"}},
    )
    monkeypatch.undo()
    settings.cache_clear()


def test_no_file_and_no_command_holds_a_password(worker: Worker):
    worker.prepare()
    written = [file.read_text() for file in worker.directory.rglob("*") if file.is_file()]
    assert len(written) == 3
    assert not any(SECRET in text for text in [*written, *worker.command()])
    properties = javaproperties.loads((worker.directory / "worker.properties").read_text())
    for prefix in ("", "producer.", "admin."):
        assert properties[f"{prefix}sasl.jaas.config"] == f"${{file:{worker.kafka.file}:sasl.jaas.config}}"


def test_a_worker_listens_on_this_machine_alone(worker: Worker):
    worker.prepare()
    properties = javaproperties.loads((worker.directory / "worker.properties").read_text())
    assert properties["listeners"] == "http://127.0.0.1:8083"


def test_a_worker_without_its_jars_says_how_to_come_by_them(worker: Worker, tmp_path: Path):
    with pytest.raises(SetupError, match=r"jars/connect has not the jars of Kafka Connect: run `make connect`$"):
        Worker(**{**vars(worker), "jars": tmp_path / "jars"}).prepare()
