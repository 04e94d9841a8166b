"""docker-compose.yaml starts the platform from a clone, and a killed worker loses and doubles no row.

It needs a Docker engine with Compose 2 that can build the images: 10 GB of disk, 16 GB of memory and some minutes.
"""

import json
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import free_port
from tests.support import checkout
from tests.support.flows import only_in_full_runs
from tests.support.waiting import wait_until

START_SECONDS, RECOVERY_SECONDS, DRAIN_SECONDS = 1_800, 600, 600
SHELL = "supervisor-watchdog"
GOLD = """
from include import catalog
from include.monitoring import status
print(sum(status.rows(table) or 0 for table in catalog.load().tables if table.startswith("gold.")))
"""
HOSTS = """
from include.control.leases import lease
from include.control.store import database
from include.settings import settings
with database.reading(database.connect(settings().control_url)) as connection:
    print(*sorted({holder.host for holder in lease.holders(connection).values()}))
"""


def has_engine() -> bool:
    if not shutil.which("docker"):
        return False
    questions = (["docker", "info"], ["docker", "compose", "version"])
    return all(subprocess.run(words, capture_output=True, timeout=60).returncode == 0 for words in questions)


@dataclass(frozen=True)
class Platform:
    """A copy of this checkout, and the name of its project."""

    directory: Path
    name: str

    def compose(self, *words: str, timeout_seconds: float = 300) -> str:
        command = ["docker", "compose", "--project-name", self.name, *words]
        result = subprocess.run(
            command, cwd=self.directory, capture_output=True, text=True, timeout=timeout_seconds, check=False
        )
        assert result.returncode == 0, f"{words}: {result.stdout[-2_000:]}{result.stderr[-2_000:]}"
        return result.stdout

    def run(self, *words: str) -> str:
        return self.compose("exec", "--no-TTY", SHELL, *words)

    def python(self, code: str) -> str:
        return self.run("python", "-c", code)

    def details(self) -> str:
        return self.compose("ps", "--all") + self.compose("logs", "--no-color", "--tail", "20")[-8_000:]

    def driver_hosts(self) -> set[str]:
        """The hosts of the drivers that hold a lease."""
        return set(self.python(HOSTS).split())

    def is_read_to_the_end(self) -> bool:
        flows = json.loads(self.run("sluice", "status", "--json"))
        # Views are refreshed at night.
        return all(flow["lag"]["is_up_to_date"] for flow in flows if flow["state"] != "VIEW")


@pytest.fixture(scope="module")
def platform(tmp_path_factory) -> Iterator[Platform]:
    if not has_engine():
        pytest.skip("no Docker engine with Compose 2 answers here")
    directory = checkout.copy_to(tmp_path_factory.mktemp("compose"))
    platform = Platform(directory, f"sluice-test-{uuid.uuid4().hex[:8]}")
    subprocess.run(["make", "compose-env"], cwd=directory, check=True, timeout=60)
    with (directory / ".env").open("a") as variables:
        variables.write(f"SLUICE_AIRFLOW_PORT={free_port()}\nSLUICE_SPARK_PORT={free_port()}\n")
    try:
        platform.compose("up", "--detach", "--build", timeout_seconds=START_SECONDS)
        yield platform
    finally:
        platform.compose("down", "--volumes", "--timeout", "5")


@only_in_full_runs
def test_the_platform_comes_up_and_a_killed_worker_loses_and_doubles_no_row(platform: Platform):
    wait_until(lambda: int(platform.python(GOLD)) > 0, START_SECONDS, platform.details, poll_seconds=5)
    [host] = platform.driver_hosts()
    rows_before = int(platform.python(GOLD))

    platform.compose("kill", host)
    wait_until(lambda: platform.driver_hosts() not in ({host}, set()), RECOVERY_SECONDS, platform.details, 2)
    wait_until(lambda: int(platform.python(GOLD)) > rows_before, RECOVERY_SECONDS, platform.details, 2)

    platform.compose("stop", "examples")
    wait_until(platform.is_read_to_the_end, DRAIN_SECONDS, platform.details, 5)
    assert "bronze.tracker_events" in platform.run("sluice", "verify")
