"""A PostgreSQL that is away from the whole platform while events flow. SQLite's case: test_lease_loss.py."""

import threading
import time
from collections.abc import Iterator

import pytest

from tests.conftest import free_port
from tests.flows import only_in_full_runs
from tests.live import Live, running
from tests.postgresql import Server
from tests.waiting import wait_until

LEASE_SECONDS = 15
AWAY_SECONDS = 120
# The short form of this is tests/unit/test_postgresql.py, on the server alone.
pytestmark = only_in_full_runs


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server(free_port())
    made.start()
    yield made
    made.remove()


@pytest.fixture(scope="module")
def live(tmp_path_factory, server: Server) -> Iterator[Live]:
    settings = {"SLUICE_CONTROL_URL": server.url, "SLUICE_LEASE_SECONDS": str(LEASE_SECONDS)}
    with running(tmp_path_factory.mktemp("postgresql"), **settings) as made:
        yield made


def test_a_server_that_hangs_for_a_moment_goes_unnoticed(live: Live, server: Server):
    driver = live.wait_for_driver()
    live.wait_for_commit()
    with server.hanging():
        threading.Event().wait(5)
    live.wait_for_commit()
    assert live.driver() == driver, live.story()
    live.assert_nothing_lost_or_doubled()


@pytest.mark.parametrize("how", ["hangs", "is down"])
def test_drivers_end_in_time_while_the_server_is_away_and_come_back_by_themselves(live: Live, server: Server, how: str):
    driver = live.wait_for_driver()
    live.wait_for_commit()
    with server.hanging() if how == "hangs" else server.down():
        gone_at = time.monotonic()
        wait_until(lambda: not (driver.jvm.is_alive or driver.python.is_alive), LEASE_SECONDS, live.log.read_text)
        threading.Event().wait(gone_at + AWAY_SECONDS - time.monotonic())
    assert "this driver ends at once, because it may no longer write" in live.log.read_text()
    live.wait_for_driver(other_than=driver)
    live.wait_for_commit()
    live.assert_nothing_lost_or_doubled()
