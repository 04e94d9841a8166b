"""Secrets of many kinds are planted, and looked for where other people and programs can read.

The search is proven: a secret in each kind of place is found.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import jsonschema
import pyarrow as pa
import pytest
import yaml
from pyarrow import parquet

from include import logs, personal
from include.airflow.launchers import standalone, submit
from include.airflow.launchers.kubernetes import Kubernetes
from include.airflow.launchers.yarn import Yarn
from include.control.store import audit, database
from include.engine.commit import CommitMetadata
from include.errors import UsageError
from include.secret_variables import without_airflow, without_secrets
from include.settings import from_environment, settings
from include.spec import Kafka, Table
from tests.conftest import ROOT
from tests.support.planted import Planted
from tests.support.secrets_search import environments_with, files_with, holds, processes_with, rows_with
from tests.support.waiting import wait_until

URL = "postgresql+psycopg://sluice@db.example/control"


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planted:
    new = Planted(tmp_path / "secrets")
    for name, value in new.variables.items():
        monkeypatch.setenv(name, value)
    return new


def test_there_are_at_least_25_kinds_and_each_has_a_value_of_its_own(planted: Planted):
    planted.message()
    assert len(planted.values) >= 25
    assert len(set(planted.tokens)) == len(planted.values)


# The search finds what is there.


@contextmanager
def process(*arguments: str, **variables: str) -> Iterator[int]:
    command = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()", *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    started = subprocess.Popen(command, **pipes, env={**os.environ, **variables})
    try:
        # Linux shows the command line of a process a moment after it began.
        started.stdout.readline()
        yield started.pid
    finally:
        started.communicate()


def test_a_secret_in_each_kind_of_place_is_found(planted: Planted, home, tmp_path: Path):
    for kind, token in planted.values.items():
        place = tmp_path / "lake" / kind.replace(" ", "-")
        place.mkdir(parents=True)
        (place / "plain.log").write_text(f"password={token};")
        (place / "_delta_log").mkdir()
        parquet.write_table(pa.table({"value": [token]}), place / "part.parquet")
        assert files_with([token], place) == {place / "plain.log", place / "part.parquet"}, kind
    (tmp_path / "lake" / planted.tokens[0]).write_text("")
    assert tmp_path / "lake" / planted.tokens[0] in files_with(planted.tokens[:1], tmp_path / "lake")
    with database.transaction(database.connect(settings().control_url)) as connection:
        audit.record(connection, "somebody", "stop", "silver.a", planted.tokens[1], "stops")
    assert rows_with([planted.tokens[1]], database.connect(settings().control_url)) == {"audit"}


def test_a_secret_on_a_command_line_and_in_an_environment_is_found():
    # No other process of this machine has these words.
    argument, value = uuid4().hex, uuid4().hex
    with process("--password", argument) as pid:
        assert len(processes_with([argument])) == 1
        assert environments_with([argument], [pid]) == []
    with process(HIDDEN_VALUE=value) as pid:
        assert environments_with([value], [pid]) == [f"{pid}: HIDDEN_VALUE"]
        assert processes_with([value]) == []


# Environments of programs.


def test_a_program_that_needs_no_secret_gets_none(planted: Planted):
    left = without_secrets(os.environ)
    assert not holds(json.dumps(left).encode(), planted.tokens), [
        name for name, value in left.items() if holds(value.encode(), planted.tokens)
    ]
    assert {"PATH", "NO_PROXY"} <= left.keys()


def test_a_program_gets_the_secrets_that_it_needs_and_no_other(planted: Planted):
    left = without_secrets(os.environ, keeps=("AWS_",))
    known = {kind for kind, token in planted.values.items() if holds(json.dumps(left).encode(), [token])}
    assert known == {"key of S3", "session of S3"}


def test_a_driver_does_not_know_the_connections_of_airflow(planted: Planted, monkeypatch, tmp_path: Path):
    script, seen = tmp_path / "spark-submit", tmp_path / "seen"
    script.write_text(f"#!/bin/sh\nenv > '{seen}'\n")
    script.chmod(0o755)
    monkeypatch.setattr(submit, "SPARK_SUBMIT", script)
    monkeypatch.setattr(submit, "log", lambda driver: tmp_path / f"{driver}.log")
    submitter = submit.start_detached("main", [])
    wait_until(lambda: not submitter.is_alive, 60)
    text = seen.read_bytes()
    of_airflow = json.dumps({name: os.environ[name] for name in os.environ if name.startswith("AIRFLOW")}).encode()
    mistakes = [kind for kind, token in planted.values.items() if holds(text, [token]) and holds(of_airflow, [token])]
    assert mistakes == []
    # What its stores and its databases ask for.
    assert holds(text, [planted.values["key of S3"]]) and holds(text, [planted.values["password of PostgreSQL"]])
    assert not any(name.startswith("AIRFLOW") for name in without_airflow(os.environ))


# What launchers hand to others: command lines, pods, and the body that a master keeps in its recovery directory.


def command_of_pods() -> str:
    return " ".join(Kubernetes("k8s://https://api.example", "streams").options("sluice-main-1", "main"))


def body_for_the_master() -> str:
    launcher = standalone.Standalone("spark://master:7077", "http://master:6066", os.environ["SPARK_REST_KEY"])
    return json.dumps(launcher._request(submit.JOB, ["--driver", "main"], "main")) + repr(launcher)


def command_for_yarn() -> str:
    return " ".join(Yarn("http://manager:8088", "streams").options("sluice-main-1"))


@pytest.mark.parametrize("rendered", [command_of_pods, body_for_the_master, command_for_yarn])
def test_no_secret_is_handed_to_a_cluster_manager(rendered: Callable[[], str], planted: Planted, own_settings):
    own_settings(SLUICE_CONTROL_URL=URL)
    text = rendered()
    assert "SLUICE_KAFKA_OTHER_CONFIG" in text
    assert [kind for kind, token in planted.values.items() if token in text] == []


def test_a_password_in_the_url_of_the_control_database_is_refused_without_being_named(planted: Planted, own_settings):
    own_settings(SLUICE_CONTROL_URL=URL.replace("sluice@", f"sluice:{planted.tokens[0]}@"))
    for rendered in (command_of_pods, body_for_the_master, command_for_yarn):
        with pytest.raises(UsageError) as error:
            rendered()
        assert planted.tokens[0] not in str(error.value)


def test_the_settings_of_the_chart_which_pods_show_take_no_secret(planted: Planted):
    chart = ROOT / "deploy" / "helm" / "sluice"
    schema, values = (
        json.loads((chart / "values.schema.json").read_text()),
        yaml.safe_load((chart / "values.yaml").read_text()),
    )
    jsonschema.validate(values, schema)
    in_address = {"OPENLINEAGE_URL": f"https://user:{planted.tokens[0]}@lineage.example"}
    for name, value in [*planted.variables.items(), *in_address.items()]:
        settings_with_it = {**values, "settings": {**values["settings"], name: value}}
        if jsonschema.Draft7Validator(schema).is_valid(settings_with_it):
            assert not holds(value.encode(), planted.tokens), name


# What is printed of settings, and of rows.


def test_settings_and_refusals_do_not_show_a_secret(planted: Planted):
    token = planted.tokens[0]
    url = URL.replace("sluice@", f"sluice:{token}@")
    assert token not in repr(from_environment({"SLUICE_HOME": "/tmp/none", "SLUICE_CONTROL_URL": url}))
    for name in ("SLUICE_LAKE", "AWS_ENDPOINT_URL", "SLUICE_KAFKA", "SLUICE_SCHEMA_REGISTRY", "OPENLINEAGE_URL"):
        with pytest.raises(UsageError) as error:
            from_environment({name: f"https://user:{token}@host.example/place"})
        assert token not in str(error.value)


def test_a_payload_with_secrets_is_hidden_in_samples_sentences_logs_and_commits(planted: Planted, home, caplog):
    table = Table(name="bronze.orders", comment="orders", source=Kafka("orders"), personal=("value",))
    message = planted.message()
    shown = json.dumps(personal.row(table, {"value": message, "key": message, "offset": 7}))
    reason = personal.sentence(table, f"[CAST_INVALID_INPUT] The value '{message.decode()}' cannot be cast")
    logs.warning(reason, table.name)
    commit = CommitMetadata(table.name, 1, 7, 1, {}, None, None)
    texts = [shown, reason, caplog.text, commit.text]
    assert [kind for kind, token in planted.values.items() if any(token in text for text in texts)] == []
    assert '"offset": 7' in shown


def test_no_committed_file_of_this_repository_is_a_private_key_or_a_token_of_a_known_form():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    forms = (
        b"-----BEGIN " + b"RSA PRIVATE KEY",
        b"-----BEGIN " + b"OPENSSH PRIVATE KEY",
        b"gh" + b"p_",
        b"xox" + b"b-",
    )
    found = [name for name in listed if (ROOT / name).is_file() and any(f in (ROOT / name).read_bytes() for f in forms)]
    assert found == []


def test_a_masked_value_cannot_be_looked_up_without_the_key_of_this_home(planted: Planted, home, monkeypatch):
    here = [personal.digest(token) for token in planted.tokens]
    assert len(set(here)) == len(here)
    monkeypatch.setattr(personal, "settings", lambda: replace(settings(), home=home / "missing"))
    assert {personal.digest(token) for token in planted.tokens} == {personal.HIDDEN}
