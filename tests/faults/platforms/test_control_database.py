"""The PostgreSQL control database is down or hangs, for one driver and, in the full form, for a platform.

test_lease_loss.py has the tests with SQLite.
"""

import time
from collections.abc import Iterator

import pytest

from tests.conftest import free_port
from tests.support.flows import only_in_full_runs
from tests.support.live import Live, running_platform
from tests.support.pipeline import Pipeline
from tests.support.postgresql import Server
from tests.support.waiting import sleep_through, wait_until

LEASE_SECONDS = 15
AWAY_SECONDS = 120
PORT = free_port()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    new_server = Server(PORT)
    new_server.start()
    yield new_server
    new_server.remove()


@pytest.fixture(scope="module")
def live(tmp_path_factory, server: Server) -> Iterator[Live]:
    settings = {"SLUICE_CONTROL_URL": server.url, "SLUICE_LEASE_SECONDS": str(LEASE_SECONDS)}
    with running_platform(tmp_path_factory.mktemp("postgresql"), **settings) as platform:
        yield platform


@pytest.mark.parametrize(
    "pipeline", [{"SLUICE_CONTROL_URL": f"postgresql+psycopg://sluice@127.0.0.1:{PORT}/postgres"}], indirect=True
)
def test_a_driver_ends_in_time_while_the_server_is_down_and_the_next_one_goes_on(server: Server, pipeline: Pipeline):
    pipeline.produce_next()
    driver = pipeline.submit()
    pipeline.wait_until_gold_is_right()
    with server.down():
        pipeline.produce_next()
        wait_until(lambda: driver.poll() is not None, pipeline.lease_seconds, pipeline.log.read_text)
    assert driver.returncode == 6
    assert "this driver ends at once, because it may no longer write" in pipeline.log.read_text()
    pipeline.submit()
    pipeline.wait_until_gold_is_right()
    pipeline.assert_nothing_lost_or_doubled()


@only_in_full_runs
def test_a_server_that_hangs_for_a_moment_goes_unnoticed(live: Live, server: Server):
    driver = live.wait_for_driver()
    live.wait_for_commit()
    with server.hanging():
        sleep_through(5)
    live.wait_for_commit()
    assert live.driver() == driver, live.diagnostics()
    live.assert_nothing_lost_or_doubled()


@only_in_full_runs
@pytest.mark.parametrize("how", ["hangs", "is down"])
def test_drivers_end_in_time_while_the_server_is_away_and_come_back_by_themselves(live: Live, server: Server, how: str):
    driver = live.wait_for_driver()
    live.wait_for_commit()
    with server.hanging() if how == "hangs" else server.down():
        down_since = time.monotonic()
        wait_until(lambda: not (driver.jvm.is_alive or driver.python.is_alive), LEASE_SECONDS, live.log.read_text)
        sleep_through(down_since + AWAY_SECONDS - time.monotonic())
    assert "this driver ends at once, because it may no longer write" in live.log.read_text()
    live.wait_for_driver(other_than=driver)
    live.wait_for_commit()
    live.assert_nothing_lost_or_doubled()
