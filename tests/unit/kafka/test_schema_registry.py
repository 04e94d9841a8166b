"""Schemas come from the registry once, and an outage of the registry is told apart from an id that it lacks."""

import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from include.errors import UsageError
from include.kafka import schema_registry
from include.kafka.schema_registry import RegistryUnreachable
from include.settings import from_environment, settings
from tests.support.kafka.registry import SchemaRegistry

SECRET = "hunter2"
TEXT = '{"type": "record", "name": "V", "fields": []}'


@pytest.fixture
def registry(monkeypatch, tmp_path: Path) -> Iterator[SchemaRegistry]:
    """A registry that demands a password, which the settings name, and an empty home."""
    server = SchemaRegistry(login=f"reader:{SECRET}")
    credentials = tmp_path / "credentials"
    credentials.write_text(f"{server.login}\n")
    use(monkeypatch, home=tmp_path, schema_registry=server.url, schema_registry_credentials=credentials)
    monkeypatch.setattr(schema_registry, "REPLICA_SECONDS", 0.01)
    yield server
    server.stop()


def use(monkeypatch, **values: object) -> None:
    changed = replace(schema_registry.settings(), **values)
    monkeypatch.setattr(schema_registry, "settings", lambda: changed)


def test_each_id_is_asked_for_once_also_where_the_registry_is_gone(registry):
    registry.register(TEXT)
    assert schema_registry.schemas([1]) == {1: TEXT}
    registry.stop()
    assert schema_registry.schemas([1]) == {1: TEXT}
    registry.start()
    assert registry.asked == {1: 1}


def test_an_id_that_the_registry_lacks_is_remembered_and_asked_for_again_later(registry, monkeypatch):
    assert schema_registry.schemas([7]) == {}
    registry.register(TEXT, 7)
    assert schema_registry.schemas([7]) == {}
    monkeypatch.setattr(schema_registry, "MISSING_SECONDS", 0)
    registry.stop()
    # What it has answered before holds while it is gone.
    assert schema_registry.schemas([7]) == {}
    registry.start()
    assert schema_registry.schemas([7]) == {7: TEXT}


def test_thousands_of_random_ids_cost_a_few_questions_and_no_schema_is_missed(registry, monkeypatch):
    for schema_id in (3, 70):
        registry.register(TEXT, schema_id)
    ids = {3, 70, *random.Random(1).sample(range(1_000, 2**31), 5_000)}
    assert schema_registry.schemas(ids) == {3: TEXT, 70: TEXT}
    assert registry.asked.total() == 2 + 2 * schema_registry.MOST_LACKING
    assert schema_registry.schemas(ids) == {3: TEXT, 70: TEXT}
    monkeypatch.setattr(schema_registry, "MISSING_SECONDS", 0)
    registry.stop()
    # A replay gives the same rows.
    assert schema_registry.schemas(ids) == {3: TEXT, 70: TEXT}
    registry.start()
    assert registry.asked.total() == 2 + 2 * schema_registry.MOST_LACKING


def test_a_schema_that_reaches_a_replica_late_is_waited_for(registry, monkeypatch):
    monkeypatch.setattr(schema_registry, "REPLICA_SECONDS", 0.5)
    timer = threading.Timer(0.1, registry.register, (TEXT,))
    timer.start()
    assert schema_registry.schemas([1]) == {1: TEXT}


def test_an_outage_is_no_missing_schema_and_names_no_password(registry, monkeypatch, tmp_path):
    registry.register(TEXT)
    monkeypatch.setattr(schema_registry, "DEADLINE_SECONDS", 0.5)
    registry.answers.clear()
    with pytest.raises(RegistryUnreachable, match=r"does not answer \((no answer in 0.5 s|TimeoutError)\)"):
        schema_registry.schemas([1])
    registry.answers.set()
    registry.stop()
    with pytest.raises(RegistryUnreachable, match="does not answer .ConnectionRefusedError."):
        schema_registry.schemas([1])
    registry.start()
    (tmp_path / "credentials").write_text(f"reader:other {SECRET}")
    with pytest.raises(RegistryUnreachable, match="answers 401 .*check SLUICE_SCHEMA_REGISTRY_CREDENTIALS") as refused:
        schema_registry.schemas([1])
    (tmp_path / "credentials").write_text(f"Bearer {SECRET}\nX: y")
    with pytest.raises(RegistryUnreachable, match="does not answer") as malformed:
        schema_registry.schemas([1])
    (tmp_path / "credentials").unlink()
    with pytest.raises(RegistryUnreachable, match="cannot be read"):
        schema_registry.schemas([1])
    assert SECRET not in f"{refused.value!r}{malformed.value!r}"
    with schema_registry.offline():
        assert schema_registry.schemas([1]) == {}


@pytest.mark.parametrize("status", [200, 302, 404, 503])
def test_another_program_at_its_port_is_no_registry(registry, monkeypatch, status: int):
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Location", f"{registry.url}/schemas/ids/1")
            self.end_headers()
            self.wfile.write(b"<html>welcome</html>")

        def log_message(self, *_: object) -> None:
            pass

    registry.register(TEXT)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    use(monkeypatch, schema_registry=f"http://127.0.0.1:{server.server_port}")
    try:
        with pytest.raises(
            RegistryUnreachable, match=f"answers {status} for schema id 1: check SLUICE_SCHEMA_REGISTRY"
        ):
            schema_registry.schemas([1])
    finally:
        server.shutdown()
        server.server_close()
    assert registry.asked == {}


def test_the_same_id_of_another_registry_is_another_schema(registry, monkeypatch):
    registry.register(TEXT)
    schema_registry.schemas([1])
    other = SchemaRegistry(registry.login)
    other.register('"string"')
    use(monkeypatch, schema_registry=other.url)
    assert schema_registry.schemas([1]) == {1: '"string"'}
    other.stop()


def test_settings_refuse_a_password_in_the_url_without_printing_it():
    with pytest.raises(UsageError, match="take it out") as error:
        from_environment({"SLUICE_SCHEMA_REGISTRY": f"https://reader:{SECRET}@registry:8081"})
    assert SECRET not in str(error.value)
    with pytest.raises(UsageError, match="'registry:8081', which is no URL"):
        from_environment({"SLUICE_SCHEMA_REGISTRY": "registry:8081"})
    assert settings().schema_registry == ""
    with pytest.raises(UsageError, match="SLUICE_SCHEMA_REGISTRY is not set"):
        schema_registry.schemas([1])
