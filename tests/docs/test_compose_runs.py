"""docker-compose.yaml starts the platform from a clone, shows no secret, and what is killed loses and doubles no row.

It needs a Docker engine with Compose 2 that can build the images: 10 GB of disk, 16 GB of memory and some minutes.
With SLUICE_TEST_LAKE=s3, the lake is in the S3 store of the file, behind a proxy.
"""

import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

from include.containers import compose_env
from tests.conftest import free_port
from tests.support import checkout
from tests.support.compose import (
    BRONZE,
    SILVER,
    SLOW_FROM,
    STORE_PROXY,
    TABLES,
    WORKERS,
    Platform,
    has_engine,
)
from tests.support.flows import only_in_full_runs
from tests.support.s3 import object_lake
from tests.support.waiting import sleep_through, wait_until

# Within which a fault has a name.
NAME_SECONDS = 60
NAMES = {"STARTING", "STUCK", "BACKING OFF"}
# More than a lease lasts.
AWAY_SECONDS = 60
POSTGRES_PORT, HALF_OPEN_SECONDS = 5432, 40
START_SECONDS, RECOVERY_SECONDS, DRAIN_SECONDS = 1_800, 600, 600
GOLD = """
from include import catalog
from include.monitoring import status
print(sum(status.rows(table) or 0 for table in catalog.load().tables if table.startswith("gold.")))
"""
# The files of the home that hold a mounted secret, or the words of the argument.
SEARCH = """
search() { grep --recursive --files-with-matches --fixed-strings --no-messages "$@" /var/lib/sluice; }
for secret in /run/secrets/*; do
    if [ -s "$secret" ]; then search --file "$secret"; fi
done
search --regexp "$1"
"""


@pytest.fixture(scope="module")
def platform(tmp_path_factory) -> Iterator[Platform]:
    if not has_engine():
        pytest.skip("no Docker engine with Compose 2 answers here")
    directory = checkout.copy_to(tmp_path_factory.mktemp("compose"))
    for path, text in TABLES.items():
        (directory / "include" / "tables" / path).write_text(text)
    platform = Platform(directory, f"sluice-test-{uuid.uuid4().hex[:8]}")
    planted = [f"{name}=planted{uuid.uuid4().hex}" for name in compose_env.GIVEN]
    ports = [f"SLUICE_{service}_PORT={free_port()}" for service in ("AIRFLOW", "SPARK")]
    store = ["AWS_ENDPOINT_URL=http://store-proxy:7070"] if object_lake.IS_USED else []
    (directory / ".env").write_text("\n".join([*planted, *ports, *store, ""]))
    subprocess.run(["make", "compose-env", *(["STORE=1"] if store else [])], cwd=directory, check=True, timeout=60)
    try:
        with platform.changed(STORE_PROXY if store else {}):
            yield platform
    finally:
        platform.compose("down", "--volumes", "--remove-orphans", "--timeout", "5")


@pytest.fixture
def recovery(capsys) -> Callable[[str], Any]:
    """`with recovery("a killed worker"):` prints how long its block took."""

    @contextmanager
    def measure(subject: str) -> Iterator[None]:
        began_at = time.monotonic()
        yield
        with capsys.disabled():
            print(f"\n{subject}: {time.monotonic() - began_at:.0f} s", flush=True)

    return measure


with_a_store = pytest.mark.skipif(not object_lake.IS_USED, reason="the lake of this run is in a volume")


def wait_for_its_name(platform: Platform) -> str:
    """Returns the first state of the flow that is not healthy, or the sentence that says why there is none."""
    names: list[str] = []

    def is_named() -> bool:
        names.append(platform.state())
        return names[-1] != "HEALTHY"

    wait_until(is_named, NAME_SECONDS, platform.details, 1)
    return names[-1]


def drivers_of_flows(platform: Platform) -> list[list[str]]:
    """The host and the process of the driver of each flow that the tests send to."""
    leases = platform.leases()
    return [leases[flow] for flow in (BRONZE, SILVER)]


def require_that_it_has_ended_itself(platform: Platform, host: str) -> None:
    """The driver on a worker that is cut off ends, and does not come back with the network."""
    wait_until(lambda: not platform.drivers_on(host), RECOVERY_SECONDS, platform.details, 2)
    platform.network("connect", host)
    platform.send_and_wait(RECOVERY_SECONDS)
    assert host not in platform.driver_hosts()
    platform.require_exact_rows()


@only_in_full_runs
def test_the_platform_comes_up_and_a_killed_worker_loses_and_doubles_no_row(platform: Platform):
    wait_until(lambda: int(platform.python(GOLD)) > 0, START_SECONDS, platform.details, poll_seconds=5)
    platform.send_and_wait(START_SECONDS)
    [host] = platform.driver_hosts()
    rows_before = int(platform.python(GOLD))

    platform.compose("kill", host)
    wait_until(lambda: platform.driver_hosts() not in ({host}, set()), RECOVERY_SECONDS, platform.details, 2)
    platform.send_and_wait(RECOVERY_SECONDS)
    wait_until(lambda: int(platform.python(GOLD)) > rows_before, RECOVERY_SECONDS, platform.details, 2)

    platform.compose("stop", "examples")
    wait_until(platform.is_read_to_the_end, DRAIN_SECONDS, platform.details, 5)
    assert "bronze.tracker_events" in platform.run("sluice", "verify")
    platform.require_exact_rows()
    platform.compose("start", host)


@only_in_full_runs
def test_no_secret_is_in_what_the_engine_shows_of_containers_in_their_logs_or_in_their_files(platform: Platform):
    secrets = platform.secrets()
    assert all(secrets.values())
    # What the search must find, in each place.
    witness = f"witness{uuid.uuid4().hex}"
    script = f"echo {witness}; echo {witness} > /var/lib/sluice/tmp/witness; sleep 300"
    one_off = ("run", "--detach", "--no-deps", "--env", f"WITNESS={witness}", "kafka-topics", "sh", "-c", script)
    container = platform.compose(*one_off).split()[-1]
    wait_until(lambda: witness in platform.shown_by_the_engine()["docker logs"], 60, platform.details)

    for place, text in platform.shown_by_the_engine().items():
        assert witness in text, place
        assert [name for name, value in secrets.items() if value in text] == [], place
    for service in ("supervisor-watchdog", *WORKERS):
        files = platform.compose("exec", "--no-TTY", service, "sh", "-c", f"{SEARCH}true", "sh", witness)
        assert files.split() == ["/var/lib/sluice/tmp/witness"], service
    configuration = platform.compose("config")
    assert "KAFKA_CLUSTER_ID" in configuration
    assert [name for name, value in secrets.items() if value in configuration] == []

    # And the processes know what they need.
    seen = platform.python("import json, os; print(json.dumps(dict(os.environ)))")
    mounted = [name for name in compose_env.SECRETS if name in seen]
    assert {"AIRFLOW_FERNET_KEY", "CONTROL_SUPERVISOR_PASSWORD", *compose_env.GIVEN} <= {*mounted}
    assert all(secrets[name] in seen for name in mounted)
    subprocess.run(["docker", "rm", "--force", container], check=True, capture_output=True, timeout=60)


@only_in_full_runs
def test_a_broker_that_is_killed_loses_and_doubles_no_row(platform, recovery):
    platform.send_and_wait(RECOVERY_SECONDS)
    platform.compose("kill", "kafka-1")
    with recovery("a killed broker"):
        platform.send_and_wait(RECOVERY_SECONDS)
    platform.start("kafka-1", RECOVERY_SECONDS)
    platform.send_and_wait(RECOVERY_SECONDS)
    platform.require_exact_rows()


@only_in_full_runs
def test_a_master_that_is_killed_and_comes_back_restarts_no_flow(platform, recovery):
    platform.send_and_wait(RECOVERY_SECONDS)
    before = drivers_of_flows(platform)
    platform.compose("kill", "spark-master")
    with recovery("without a master"):
        platform.send_and_wait(RECOVERY_SECONDS)
    platform.start("spark-master", RECOVERY_SECONDS)
    with recovery("a master that came back"):
        platform.send_and_wait(RECOVERY_SECONDS)
    # The master waits for its workers for a minute, and then ends what it takes for lost.
    sleep_through(AWAY_SECONDS)
    platform.send_and_wait(RECOVERY_SECONDS)
    assert drivers_of_flows(platform) == before
    platform.require_exact_rows()


@only_in_full_runs
def test_a_worker_that_is_killed_has_a_name_and_loses_and_doubles_no_row(platform, recovery):
    platform.send_and_wait(RECOVERY_SECONDS)
    [host] = platform.driver_hosts()
    platform.compose("kill", host)
    with recovery("a killed worker, until rows arrive"):
        with recovery("its state has a name"):
            assert wait_for_its_name(platform) in NAMES
        platform.send_and_wait(RECOVERY_SECONDS)
    assert host not in platform.driver_hosts()
    platform.start(host, RECOVERY_SECONDS)
    platform.require_exact_rows()


@only_in_full_runs
def test_an_executor_that_is_killed_within_a_batch_loses_and_doubles_no_row(platform, recovery):
    platform.send_and_wait(RECOVERY_SECONDS)
    platform.send(range(SLOW_FROM, SLOW_FROM + 100))
    wait_until(lambda: platform.has_all(BRONZE), RECOVERY_SECONDS, platform.details, 1)
    # What computes now is the batch of the other table.
    busy: list[psutil.Process] = []
    wait_until(lambda: busy.extend(filter(None, [platform.busy_executor()])) or busy, RECOVERY_SECONDS)
    busy[0].kill()
    assert not platform.has_all(SILVER), "its batch was over before"
    with recovery("an executor that was killed"):
        platform.send_and_wait(RECOVERY_SECONDS)
    platform.require_exact_rows()


@only_in_full_runs
def test_a_worker_that_is_cut_off_beyond_its_lease_ends_its_driver_and_loses_and_doubles_no_row(platform, recovery):
    platform.send_and_wait(RECOVERY_SECONDS)
    [host] = platform.driver_hosts()
    platform.network("disconnect", host)
    with recovery("a worker that is cut off, until rows arrive"):
        with recovery("its state has a name"):
            assert wait_for_its_name(platform) in NAMES
        platform.send_and_wait(RECOVERY_SECONDS)
    require_that_it_has_ended_itself(platform, host)


@only_in_full_runs
def test_a_database_that_answers_a_worker_no_more_for_40_seconds_loses_and_doubles_no_row(platform, recovery):
    platform.send_and_wait(RECOVERY_SECONDS)
    [host] = platform.driver_hosts()
    with platform.half_open(host, POSTGRES_PORT):
        began_at = time.monotonic()
        platform.send()
        with recovery("its state has a name"):
            assert wait_for_its_name(platform) in NAMES
        sleep_through(HALF_OPEN_SECONDS - (time.monotonic() - began_at))
    with recovery("a half open connection, until rows arrive"):
        platform.send_and_wait(RECOVERY_SECONDS)
    platform.require_exact_rows()


@only_in_full_runs
def test_workers_with_clocks_a_fifth_slow_lose_and_double_no_row_if_one_is_cut_off(platform, recovery):
    with platform.slow_clocks(*WORKERS):
        platform.send_and_wait(START_SECONDS)
        [host] = platform.driver_hosts()
        assert platform.seconds_by_its_clock(host, 5) < 4.5
        platform.network("disconnect", host)
        with recovery("a worker with a slow clock that is cut off, until rows arrive"):
            platform.send_and_wait(RECOVERY_SECONDS)
        require_that_it_has_ended_itself(platform, host)
    platform.send_and_wait(START_SECONDS)
    platform.require_exact_rows()


@only_in_full_runs
@with_a_store
def test_a_store_that_answers_every_tenth_request_with_503_loses_and_doubles_no_row(platform, recovery):
    platform.send_and_wait(RECOVERY_SECONDS)
    platform.compose("kill", "--signal", "SIGUSR1", "store-proxy")
    with recovery("a store that refuses every tenth request"):
        for _ in range(3):
            platform.send_and_wait(RECOVERY_SECONDS)
    platform.compose("kill", "--signal", "SIGUSR2", "store-proxy")
    platform.send_and_wait(RECOVERY_SECONDS)
    platform.require_exact_rows()


@only_in_full_runs
@with_a_store
def test_a_store_that_is_away_for_a_minute_loses_and_doubles_no_row(platform, recovery):
    platform.send_and_wait(RECOVERY_SECONDS)
    platform.compose("stop", "store")
    stopped_at = time.monotonic()
    platform.send()
    with recovery("its state has a name"):
        wait_until(lambda: platform.state() != "HEALTHY", NAME_SECONDS, platform.details, 1)
    sleep_through(AWAY_SECONDS - (time.monotonic() - stopped_at))
    platform.start("store", RECOVERY_SECONDS)
    with recovery("a store that was away for a minute"):
        platform.send_and_wait(RECOVERY_SECONDS)
    platform.require_exact_rows()


@only_in_full_runs
def test_a_scheduler_that_is_killed_restarts_no_flow(platform, recovery):
    platform.send_and_wait(RECOVERY_SECONDS)
    before = drivers_of_flows(platform)
    platform.compose("kill", "airflow-scheduler")
    with recovery("without a scheduler"):
        platform.send_and_wait(RECOVERY_SECONDS)
    sleep_through(AWAY_SECONDS)
    platform.send_and_wait(RECOVERY_SECONDS)
    platform.start("airflow-scheduler", RECOVERY_SECONDS)
    platform.send_and_wait(RECOVERY_SECONDS)
    assert drivers_of_flows(platform) == before
    platform.require_exact_rows()


@only_in_full_runs
def test_a_database_that_restarts_and_is_away_for_a_minute_loses_and_doubles_no_row(platform, recovery):
    platform.send_and_wait(RECOVERY_SECONDS)
    platform.compose("restart", "postgres")
    with recovery("a database that restarted"):
        platform.send_and_wait(RECOVERY_SECONDS)
    platform.compose("stop", "postgres")
    stopped_at = time.monotonic()
    with recovery("its state has a name"):
        wait_until(lambda: "does not answer" in platform.answer("sluice", "status"), NAME_SECONDS, platform.details, 1)
    sleep_through(AWAY_SECONDS - (time.monotonic() - stopped_at))
    platform.start("postgres", RECOVERY_SECONDS)
    with recovery("a database that was away for a minute"):
        platform.send_and_wait(RECOVERY_SECONDS)
    platform.require_exact_rows()


@only_in_full_runs
def test_a_platform_that_is_killed_as_a_whole_loses_and_doubles_no_row(platform, recovery):
    platform.send_and_wait(RECOVERY_SECONDS)
    platform.compose("kill")
    with recovery("everything killed at once"):
        platform.compose("up", "--detach", timeout_seconds=START_SECONDS)
        platform.send_and_wait(START_SECONDS)
    platform.require_exact_rows()
