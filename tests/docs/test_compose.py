"""docker-compose.yaml and the Dockerfile, as far as a test can check them without a container engine."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy
import yaml
from pyarrow.fs import S3FileSystem

from include.containers import compose_env, migrate
from include.control import commands
from include.control.commands import Action, Command
from include.control.store import database
from include.errors import SetupError
from include.local import object_store, postgresql
from include.settings import from_environment, settings
from tests.conftest import ROOT, free_port
from tests.support.waiting import wait_until

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())
SERVICES = COMPOSE["services"]
WITHOUT_SLUICE = {"postgres"}
SECRETS = compose_env.SECRETS
# The services that may know a secret.
AIRFLOW = {name for name in SERVICES if name.startswith("airflow-")} | {"supervisor-watchdog"}
PLATFORM = AIRFLOW | {"spark-worker-1", "spark-worker-2"}
KNOWN_BY = {
    "AIRFLOW_ADMIN_PASSWORD": {"airflow-api-server"},
    "AIRFLOW_API_SECRET": AIRFLOW,
    "AIRFLOW_DATABASE_PASSWORD": AIRFLOW | {"postgres"},
    "AIRFLOW_FERNET_KEY": AIRFLOW,
    "AIRFLOW_JWT_SECRET": AIRFLOW,
    "AWS_ACCESS_KEY_ID": PLATFORM | {"store"},
    "AWS_SECRET_ACCESS_KEY": PLATFORM | {"store"},
    "CONTROL_DATABASE_PASSWORD": {"postgres", "control-migrate"},
    "CONTROL_DRIVER_PASSWORD": {"postgres", "spark-worker-1", "spark-worker-2"},
    "CONTROL_SUPERVISOR_PASSWORD": AIRFLOW | {"postgres"},
    "OPENLINEAGE_API_KEY": PLATFORM,
    "SPARK_AUTH_SECRET": {"spark-master", "spark-worker-1", "spark-worker-2"},
    "SPARK_REST_KEY": AIRFLOW | {"spark-master"},
}
MIB = {"m": 1, "g": 1024}
ENDING = {"airflow-migrate", "control-migrate", "kafka-topics"}
PASSWORDS = {name: f"secret of {name}" for name in compose_env.VALUES if name.endswith("DATABASE_PASSWORD")}
PASSWORDS |= {f"CONTROL_{part}_PASSWORD": f"it's of {part}" for part in ("DRIVER", "SUPERVISOR")}
# By setting that no container takes from `.env`: why.
NOT_PASSED_ON = {
    **dict.fromkeys(("SLUICE_HOME", "SLUICE_JARS", "SLUICE_VENV"), "the image says where that is"),
    "SLUICE_CACHE": "nothing is downloaded while a container runs",
    **dict.fromkeys(("SLUICE_KAFKA", "SLUICE_CONTROL_URL"), "a service of the file"),
    **dict.fromkeys(("SLUICE_AIRFLOW_PORT", "SLUICE_SPARK_PORT"), "a port of this machine"),
    **dict.fromkeys(("SLUICE_CONNECT_PORT", "SLUICE_S3_PORT", "SLUICE_SQL_PORT"), "a server that `make up` starts"),
    **dict.fromkeys(
        ("SLUICE_KAFKA_CONFIG", "SLUICE_KAFKA_EU_CONFIG", "SLUICE_SCHEMA_REGISTRY_CREDENTIALS"),
        "a file, which has to be mounted",
    ),
}
# What the comments of `.env.example` name beside the settings.
FOR_STORES = {"AWS_ALLOW_HTTP", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_GLUE", "AWS_REGION"}
OF_EXAMPLES = {"SLUICE_EVENTS_PER_SECOND"}


def test_every_image_is_built_here_on_a_base_with_a_version():
    assert {service["image"] for service in SERVICES.values()} == {"sluice", "sluice-postgres", "sluice-store"}
    assert all("build" in service for service in SERVICES.values())
    dockerfile = (ROOT / "Dockerfile").read_text()
    stages = re.findall(r"^FROM \S+ AS (\S+)$", dockerfile, re.MULTILINE)
    bases = set(re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)) - {*stages}
    assert bases == {"debian:bookworm-slim", "golang:1.26-bookworm"}
    assert f"{object_store.MODULE}@{object_store.VERSION}" in dockerfile


def test_the_image_has_the_files_that_its_steps_need_before_it_has_all(tmp_path: Path):
    copied, imported = r"^COPY (include/.*) \S+$", r"python3? -m (include\S+)"
    text = (ROOT / "Dockerfile").read_text().partition(" AS sluice")[2].replace("\\\n", " ")
    modules = []
    for line in text.splitlines():
        for name in " ".join(re.findall(copied, line)).split():
            if (ROOT / name).is_file():
                (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, tmp_path / name)
        for module in re.findall(imported, line) if line.startswith("RUN") else []:
            modules.append(module)
            subprocess.run([sys.executable, "-S", "-c", f"import {module}"], cwd=tmp_path, env={}, check=True)
    assert modules[-2:] == ["include.local.install", "include.local.artifacts"]


def test_every_service_that_another_waits_for_exists():
    for name, service in SERVICES.items():
        assert set(service.get("depends_on", {})) <= set(SERVICES), name


@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_is_known_where_it_is_needed_alone(secret: str):
    knowing = {name for name, service in SERVICES.items() if secret in service.get("secrets", [])}
    assert knowing == KNOWN_BY[secret]


def test_no_secret_is_in_what_an_engine_shows_of_a_container(tmp_path: Path):
    env = tmp_path / ".env"
    compose_env.complete(env)
    values = compose_env.variables(env.read_text()) | {name: f"value-of-{name}" for name in compose_env.GIVEN}
    # Compose fills in what is within ${}, and makes $ of $$.
    filled = re.sub(
        r"(\$\$)|\$\{(\w+)(?::[-?]([^}]*))?\}",
        lambda match: "$" if match[1] else values.get(match[2]) or match[3],
        (ROOT / "docker-compose.yaml").read_text(),
    )
    services = yaml.safe_load(filled)["services"]
    # The filling in is seen to work by what is no secret.
    assert services["kafka-1"]["environment"]["KAFKA_CLUSTER_ID"] == values["KAFKA_CLUSTER_ID"]
    assert [name for name in SECRETS if values[name] in str(services)] == []
    # None comes from the shell either, and each that a variable names is mounted.
    for name, service in services.items():
        environment = service.get("environment", {})
        assert not {*environment} & {*SECRETS}, name
        assert {*re.findall(r"\$\{(\w+)\}", str(environment))} <= {*service.get("secrets", [])}, name


def test_every_mounted_secret_is_a_file_that_the_command_writes():
    files = {name: secret["file"] for name, secret in COMPOSE["secrets"].items()}
    directory = compose_env.DIRECTORY.relative_to(ROOT)
    assert files == {name: str(directory / name) for name in compose_env.SECRETS}


def test_no_service_runs_as_root_or_writes_outside_of_its_volumes():
    dockerfile = (ROOT / "Dockerfile").read_text()
    postgres, _, others = dockerfile.partition(" AS sluice")
    assert re.findall(r"^USER (\S+)$", postgres, re.MULTILINE) == ["postgres"]
    assert re.findall(r"^USER (\S+)$", others, re.MULTILINE) == ["sluice", "store"]
    for name, service in SERVICES.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert name in WITHOUT_SLUICE or service["read_only"], name


def test_no_container_sees_the_file_of_all_secrets_and_no_image_or_repository_holds_it():
    for name, service in SERVICES.items():
        mounts = {Path(volume.split(":")[0]) for volume in service.get("volumes", []) if volume.startswith((".", "/"))}
        assert not any(Path(file).is_relative_to(mount) for mount in mounts for file in (".env", ".secrets")), name
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[1] == "*"
    assert not {"!.env", "!.secrets"} & {*ignored}
    assert {"/.env", "/.secrets/"} <= {*(ROOT / ".gitignore").read_text().splitlines()}


def test_user_interfaces_are_open_to_this_machine_alone_and_nothing_else_is():
    ports = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert ports == {
        "airflow-api-server": ["127.0.0.1:${SLUICE_AIRFLOW_PORT:-8080}:8080"],
        "spark-master": ["127.0.0.1:${SLUICE_SPARK_PORT:-8081}:8080"],
    }


def test_all_services_together_have_at_most_16_gib():
    limits = {name: service["mem_limit"] for name, service in SERVICES.items()}
    # These end before what waits for them starts.
    lasting = [limit for name, limit in limits.items() if name not in ENDING]
    assert sum(int(limit[:-1]) * MIB[limit[-1]] for limit in lasting) <= 16 * 1024


def test_every_service_that_stays_has_a_health_check_or_ends_when_it_is_not_well():
    without = {name for name, service in SERVICES.items() if "healthcheck" not in service}
    assert without == ENDING | {"supervisor-watchdog", "examples"}


def test_every_variable_of_the_file_is_in_the_example_of_env_and_written_by_the_command():
    examples = set(re.findall(r"^#(\w+)=$", (ROOT / ".env.example").read_text(), re.MULTILINE))
    required = set(re.findall(r"\$\{(\w+):\?", (ROOT / "docker-compose.yaml").read_text()))
    assert required | set(COMPOSE["secrets"]) - {*compose_env.GIVEN} == set(compose_env.VALUES) <= examples


def passed_on(service: str) -> set[str]:
    """The variables that a service takes from `.env` under the same names; without a value, only if it is set."""
    variables = SERVICES[service].get("environment", {})
    return {name for name, value in variables.items() if value is None or str(value).startswith(f"${{{name}:-")}


def test_every_setting_that_a_container_needs_is_passed_on():
    documented = set(re.findall(r"^#((?:SLUICE|OPENLINEAGE)_\w+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
    needed = documented - NOT_PASSED_ON.keys() - OF_EXAMPLES | FOR_STORES
    for service in PLATFORM:
        assert needed - passed_on(service) == set(), service
    assert passed_on("examples") >= OF_EXAMPLES
    # What is left out for a reason is documented, and is left out.
    assert documented >= NOT_PASSED_ON.keys()
    assert not any(NOT_PASSED_ON.keys() & passed_on(service) for service in SERVICES)


def test_the_command_writes_secrets_that_only_their_owner_can_read_and_keeps_those_that_exist(tmp_path: Path):
    file = tmp_path / ".env"
    assert compose_env.complete(file) == list(compose_env.VALUES)
    assert file.stat().st_mode & 0o777 == 0o600
    values = dict(line.split("=", 1) for line in file.read_text().splitlines())
    assert all(len(values[name]) >= 22 for name in compose_env.VALUES)
    assert all(len(values[name]) >= 43 for name in SECRETS if name in values and name != "AIRFLOW_ADMIN_PASSWORD")
    assert len(set(values.values())) == len(values)

    file.write_text("OTHER=1\nSPARK_AUTH_SECRET=mine\nAIRFLOW_JWT_SECRET=")
    file.chmod(0o644)
    added = compose_env.complete(file)
    assert "SPARK_AUTH_SECRET" not in added
    assert "AIRFLOW_JWT_SECRET" in added
    assert file.read_text().startswith("OTHER=1\nSPARK_AUTH_SECRET=mine\nAIRFLOW_JWT_SECRET=\nAIRFLOW_ADMIN_PASSWORD=")
    assert file.stat().st_mode & 0o777 == 0o600
    assert compose_env.complete(file) == []


def test_a_lake_in_the_store_is_chosen_for_a_platform_that_has_none_elsewhere(tmp_path: Path):
    file = tmp_path / ".env"
    compose_env.complete(file)
    assert compose_env.complete(file, compose_env.VALUES | compose_env.STORE) == list(compose_env.STORE)
    values = compose_env.variables(file.read_text())
    assert (values["COMPOSE_PROFILES"], SERVICES["store"]["profiles"]) == ("store", ["store"])
    assert from_environment({**values, "SLUICE_HOME": str(tmp_path)}).lake == "s3a://sluice/lake"
    assert compose_env.complete(file) == []

    file.write_text("SLUICE_LAKE=s3a://ours/lake\n")
    with pytest.raises(SetupError, match="SLUICE_LAKE is s3a://ours/lake in .env, so the store would stay empty"):
        compose_env.complete(file, compose_env.VALUES | compose_env.STORE)
    assert file.read_text() == "SLUICE_LAKE=s3a://ours/lake\n"


@pytest.fixture
def store_address(tmp_path: Path) -> Iterator[str]:
    """What the container `store` runs, without a container."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "versitygw").symlink_to(object_store.fetch())
    secrets = tmp_path / "secrets"
    compose_env.write_files(secrets, {"AWS_ACCESS_KEY_ID": "sluice", "AWS_SECRET_ACCESS_KEY": "a $ecret 'key'"})
    address = f"127.0.0.1:{free_port()}"
    environment = {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "SLUICE_SECRETS": str(secrets),
        "STORE_DATA": str(tmp_path / "data"),
        "STORE_ADDRESS": address,
    }
    with (tmp_path / "log").open("wb") as log:
        command = ["sh", str(ROOT / "containers" / "store.sh")]
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: is_open(address) or server.poll() is not None, 60, (tmp_path / "log").read_text)
        yield address
    finally:
        server.kill()
        server.wait()


def is_open(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def test_the_store_has_the_bucket_of_the_lake_for_who_knows_the_mounted_keys(store_address: str, tmp_path: Path):
    def client(secret: str) -> S3FileSystem:
        endpoint = f"http://{store_address}"
        return S3FileSystem(access_key="sluice", secret_key=secret, region="us-east-1", endpoint_override=endpoint)

    lake = f"{compose_env.STORE['SLUICE_LAKE']().removeprefix('s3a://')}"
    with client("a $ecret 'key'").open_output_stream(f"{lake}/x") as stream:
        stream.write(b"rows")
    assert (tmp_path / "data" / lake / "x").read_bytes() == b"rows"
    with pytest.raises(OSError, match="SIGNATURE|Forbidden|403|ACCESS"):
        client("another").open_input_stream(f"{lake}/x")


def test_each_secret_of_yesterday_gets_a_file_that_containers_can_read_and_other_users_cannot_reach(tmp_path: Path):
    lines = (
        "#SPARK_AUTH_SECRET=example",
        "SPARK_AUTH_SECRET=old",
        "export SPARK_REST_KEY='a key = #1' # ours",
        "AWS_SECRET_ACCESS_KEY=k/+= # theirs",
        "AIRFLOW_JWT_SECRET=",
    )
    values = compose_env.variables("\n".join(lines))
    directory = tmp_path / "secrets"
    for written in (values, values | {"SPARK_AUTH_SECRET": "new"}):
        compose_env.write_files(directory, written)
        assert {file.name for file in directory.iterdir()} == {*compose_env.SECRETS}
        assert {file.stat().st_mode & 0o777 for file in directory.iterdir()} == {0o444}
        assert directory.stat().st_mode & 0o777 == 0o700
        assert (directory / "SPARK_AUTH_SECRET").read_text() == written["SPARK_AUTH_SECRET"]
    assert (directory / "SPARK_REST_KEY").read_text() == "a key = #1"
    assert (directory / "AWS_SECRET_ACCESS_KEY").read_text() == "k/+="
    assert (directory / "AIRFLOW_JWT_SECRET").read_text() == ""


@pytest.fixture
def database_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What the container `postgres` runs, without a container. Returns the URL of the control database."""
    # Other users cannot enter the directory of pytest.
    directory, port = Path(tempfile.mkdtemp(prefix="sluice-compose-")), free_port()
    script = directory / "postgres.sh"
    shutil.copy(ROOT / "containers" / "postgres.sh", script)
    postgresql.give_to_other_user(directory, script)
    options = ["-p", str(port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-F"]
    command = [*postgresql.other_user(), "sh", str(script), *options]
    programs = str(postgresql.program("postgres").parent)
    secrets = directory / "secrets"
    secrets.mkdir()
    for name, value in PASSWORDS.items():
        (secrets / name).write_text(value)
    environment = {
        **os.environ,
        "SLUICE_SECRETS": str(secrets),
        "PGDATA": str(directory / "data"),
        "POSTGRESQL_PROGRAMS": programs,
    }
    with (directory / "log").open("wb") as log:
        server = subprocess.Popen(command, env=environment, cwd=directory, stdout=log, stderr=subprocess.STDOUT)
    url = f"postgresql+psycopg://127.0.0.1:{port}/control"
    try:
        wait_until(lambda: answers(port) or server.poll() is not None, 120, (directory / "log").read_text)
        yield url
    finally:
        # It ends without waiting for those who are still connected.
        server.send_signal(signal.SIGINT)
        server.wait(60)
        shutil.rmtree(directory)


def answers(port: int) -> bool:
    """Whether it asks for a password. Until then it says that it starts."""
    with pytest.raises(psycopg.OperationalError) as refusal:
        psycopg.connect(f"host=127.0.0.1 port={port} user=control password=wrong dbname=control")
    return "password authentication failed" in str(refusal.value)


def test_each_part_has_a_login_with_its_rights_alone_once_the_owner_has_migrated(database_server: str, monkeypatch):
    def as_(user: str, password: str) -> sqlalchemy.Engine:
        monkeypatch.setenv("PGUSER", user)
        monkeypatch.setenv("PGPASSWORD", PASSWORDS[password])
        return database.connect.__wrapped__(database_server)

    monkeypatch.setenv("SLUICE_CONTROL_URL", database_server)
    settings.cache_clear()
    owner = as_("control", "CONTROL_DATABASE_PASSWORD")
    migrate.main()
    command = Command(Action.STOP, ("silver.orders",), "ada", "a test")
    engines = [owner]
    for part in ("driver", "supervisor"):
        engines.append(engine := as_(f"control_{part}", f"CONTROL_{part.upper()}_PASSWORD"))
        assert commands.execute(engine, command)
        for refused in ("UPDATE audit SET who = 'eve'", "DROP TABLE audit", "CREATE TABLE mine (number INTEGER)"):
            with pytest.raises(sqlalchemy.exc.ProgrammingError), engine.begin() as connection:
                connection.execute(sqlalchemy.text(refused))
        with pytest.raises(psycopg.OperationalError, match="permission denied"):
            psycopg.connect(database_server.replace("+psycopg", "").replace("/control", "/airflow"))
    for engine in engines:
        engine.dispose()
    monkeypatch.undo()
    settings.cache_clear()
