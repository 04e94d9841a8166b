"""A whole platform with a lake on S3 and a control database on PostgreSQL leaves their credentials nowhere."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from include.local import object_store
from tests.conftest import free_port
from tests.support.flows import only_in_full_runs
from tests.support.live import Live, running_platform
from tests.support.postgresql import Server
from tests.support.s3.bucket import skip_without_store
from tests.support.secrets_search import files_with, holds, processes_with, rows_with
from tests.support.waiting import wait_until


@pytest.fixture
def server() -> Iterator[Server]:
    new_server = Server(free_port())
    new_server.start()
    yield new_server
    new_server.remove()


@only_in_full_runs
@pytest.mark.parametrize("place", ["URL", "PGPASSFILE"])
def test_no_log_file_table_or_command_line_has_the_credentials(
    place: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    skip_without_store()
    password, home = secrets.token_hex(8), tmp_path / "home"
    url, file = server.add_user("guarded", password), tmp_path / "pgpass"
    file.touch(mode=0o600)
    file.write_text(f"127.0.0.1:{server.port}:postgres:guarded:{password}\n")
    if place == "URL":
        url = url.replace("guarded@", f"guarded:{password}@")
    port = str(free_port())
    # Variables of `make up` that its processes inherit.
    monkeypatch.setenv("PGPASSFILE", str(file))
    monkeypatch.setenv("SLUICE_S3_PORT", port)
    settings = {"SLUICE_CONTROL_URL": url, "SLUICE_S3_PORT": port, "SLUICE_LAKE": "s3a://lake/dev"}
    with running_platform(home, **settings, SLUICE_LEASE_SECONDS="15") as live:
        store = object_store.declared(live.config)
        assert store
        planted = [password, store.client_variables()["AWS_SECRET_ACCESS_KEY"]]
        command_lines = observe(live, server, planted)
        found_rows = rows_with(planted, live.control)
        status = live.status()
        live.down()
    assert command_lines == []
    assert found_rows == set()
    assert not holds(status.encode(), planted), status
    # Those that hold them, for nobody else to read.
    holders = {home / "env.sh", home / "store" / "credentials", file}
    assert files_with(planted, tmp_path) == holders
    assert [f"{holder.stat().st_mode:o}"[-3:] for holder in holders] == ["600"] * len(holders)


def observe(live: Live, server: Server, planted: list[str]) -> list[str]:
    """Lets the platform work and its database fail. Returns the command lines with credentials."""
    driver = live.wait_for_driver()
    live.wait_for_supervisor()
    command_lines = processes_with(planted)
    with server.down():
        wait_until(lambda: not driver.python.is_alive, 120, live.log.read_text)
        command_lines += processes_with(planted)
    live.wait_for_driver(other_than=driver)
    return command_lines
