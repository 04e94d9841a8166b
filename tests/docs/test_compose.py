"""docker-compose.yaml, as far as a test can check it without a container engine."""

import re
from pathlib import Path

import yaml

from tests.conftest import ROOT

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())


def test_every_image_is_pinned_to_a_version_and_is_one_of_the_four():
    for name, service in COMPOSE["services"].items():
        image, _, tag = service["image"].partition(":")
        assert image in {"apache/kafka", "apache/airflow", "apache/spark", "postgres"}, name
        assert re.match(r"\d+\.\d+", tag), f"{name} floats on '{tag}'"


def test_every_service_that_another_waits_for_exists():
    for name, service in COMPOSE["services"].items():
        dependencies = set(service.get("depends_on", {}))
        assert dependencies <= set(COMPOSE["services"]), name


def test_every_airflow_service_shares_the_secret_and_knows_the_execution_api():
    airflow = {
        name: definition
        for name, definition in COMPOSE["services"].items()
        if definition["image"].startswith("apache/airflow")
    }
    assert len(airflow) >= 4
    for name, service in airflow.items():
        environment = service["environment"]
        assert "AIRFLOW__API_AUTH__JWT_SECRET" in environment, name
        assert environment["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"].endswith("/execution/"), name


def test_airflow_is_the_version_of_the_lock():
    version = re.search(r"^apache-airflow==([\d.]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE).group(1)
    images = {
        service["image"] for service in COMPOSE["services"].values() if service["image"].startswith("apache/airflow")
    }
    assert images == {f"apache/airflow:{version}-python3.11"}


def test_no_container_sees_the_file_of_secrets_and_spark_is_given_none_of_them():
    for name, service in COMPOSE["services"].items():
        mounts = {Path(volume.split(":")[0]) for volume in service.get("volumes", []) if volume.startswith((".", "/"))}
        assert not any(Path(".env").is_relative_to(mount) for mount in mounts), name
        if service["image"].startswith("apache/spark"):
            assert "environment" not in service and "env_file" not in service, name


def test_ports_are_open_to_this_machine_alone():
    ports = [port for service in COMPOSE["services"].values() for port in service.get("ports", [])]
    assert len(ports) >= 2
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_the_billing_database_starts_on_demand_alone_and_no_other_service_knows_its_password():
    services = COMPOSE["services"]
    assert [name for name, service in services.items() if service.get("profiles")] == ["billing"]
    assert [name for name, service in services.items() if "BILLING_PASSWORD" in str(service)] == ["billing"]
    assert not any("billing" in service.get("depends_on", {}) for service in services.values())


def test_every_variable_of_the_file_is_in_the_example_of_env():
    examples = re.findall(r"^#(\w+)=$", (ROOT / ".env.example").read_text(), re.MULTILINE)
    assert set(re.findall(r"\$\{(\w+)", (ROOT / "docker-compose.yaml").read_text())) <= set(examples)
