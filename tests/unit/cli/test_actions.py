"""Commands of the on-call engineer: they are audited, wait until a driver has followed, and exit by that."""

import getpass
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, select

from include import catalog
from include.catalog import Catalog
from include.cli import main as cli
from include.cli.actions import NotDone
from include.control.flows import incidents, orders
from include.control.leases import lease
from include.control.leases.lease import Lease
from include.control.leases.process import Holder
from include.control.store import database
from include.control.store.schema import audits
from include.errors import SluiceError, UsageError
from include.settings import settings
from include.spec import Kafka, Table
from tests.support.waiting import wait_until

FLOW = "bronze.clicks"
REASON = ("--reason", "a test")


@pytest.fixture
def engine(home: Path, own_settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """The control database of a platform with one flow, which nobody runs."""
    own_settings(SLUICE_CONTROL_URL=f"sqlite:///{home / 'control.db'}")
    tables = Catalog({FLOW: Table(name=FLOW, comment="", source=Kafka("t"))})
    monkeypatch.setattr(catalog, "load", lambda: tables)
    control_engine = database.connect(settings().control_url)
    yield control_engine
    control_engine.dispose()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Callable[..., str]:
    def command(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["sluice", *arguments])
        cli.main()
        return capsys.readouterr().out

    return command


def audit(engine: Engine) -> list[tuple[str, str, str, str]]:
    with database.reading(engine) as connection:
        rows = connection.execute(select(audits).order_by(audits.c.number)).all()
    return [(row.who, row.action, row.target, row.reason) for row in rows]


def come_up(engine: Engine, driver: Holder) -> None:
    lease.acquire(engine, [lease.driver_lease("main"), FLOW], driver, 60)
    orders.begin(engine, [FLOW], by_hand=False)
    orders.report_progress(engine, [FLOW])


def follow(engine: Engine, turn: int) -> None:
    """Does what a driver does when a restart of its flow was asked for."""
    wait_until(lambda: orders.read(engine, "main", [FLOW]).of[FLOW].turn > turn, 30)
    # The query that ends still reports.
    orders.report_progress(engine, [FLOW])
    orders.begin(engine, [FLOW], by_hand=False)
    orders.report_progress(engine, [FLOW])


def test_a_restart_waits_for_the_next_run_of_the_flow_and_is_audited_with_the_user(engine, run, holder):
    come_up(engine, holder("main"))
    driver = threading.Thread(target=follow, args=(engine, orders.read(engine, "main", [FLOW]).of[FLOW].turn))
    driver.start()
    output = run("restart", FLOW, *REASON)
    driver.join()
    assert output.splitlines()[-1].startswith("done after ")
    assert audit(engine) == [(getpass.getuser(), "restart", FLOW, "a test")]


def test_a_restart_that_no_driver_follows_is_not_done(engine, run, holder):
    come_up(engine, holder("main"))
    with pytest.raises(NotDone, match="not done after 0 s"):
        run("restart", FLOW, *REASON, "--wait-seconds", "0")
    assert len(audit(engine)) == 1


def test_without_driver_and_supervisor_a_start_says_who_is_missing_and_stays_stored(engine, run):
    run("stop", FLOW, *REASON)
    with pytest.raises(NotDone, match="only the supervisor launches it"):
        run("start", FLOW, *REASON)
    assert orders.read(engine, "main", [FLOW]).of[FLOW].state == "running"
    assert [action for _, action, _, _ in audit(engine)] == ["stop", "start"]


def test_a_move_waits_until_the_flow_is_at_work_in_its_new_driver(engine, run, holder):
    come_up(engine, old := holder("main"))
    with pytest.raises(NotDone, match="driver 'main-2' does not run, and only the supervisor launches it"):
        run("move", FLOW, "--to", "main-2", *REASON)
    lease.acquire(engine, [lease.driver_lease("main-2")], new := holder("main-2"), 60)
    with pytest.raises(NotDone, match="not done after 0 s"):
        run("move", FLOW, "--to", "main-2", *REASON, "--wait-seconds", "0")

    def take_over() -> None:
        with database.reading(engine) as connection:
            held = Lease(FLOW, lease.epoch(connection, FLOW))
        lease.release(engine, [held])
        lease.acquire(engine, [FLOW], new, 60)
        orders.begin(engine, [FLOW], by_hand=False)
        orders.report_progress(engine, [FLOW])

    driver = threading.Thread(target=take_over)
    driver.start()
    output = run("move", FLOW, "--to", "main-2", *REASON)
    driver.join()
    assert output.splitlines()[-1].endswith("bronze.clicks moved")
    assert old.python.is_alive
    assert [action for _, action, _, _ in audit(engine)] == ["move"] * 3


def test_a_flow_that_does_not_run_is_stopped_at_once_and_cannot_be_restarted(engine, run):
    assert "bronze.clicks stopped" in run("stop", FLOW, *REASON)
    with pytest.raises(NotDone, match="sluice start"):
        run("restart", FLOW, *REASON)


def test_a_flow_that_still_writes_is_not_stopped_yet(engine, run, holder):
    come_up(engine, holder("main"))
    with pytest.raises(NotDone, match="its current batch has not ended"):
        run("stop", FLOW, *REASON, "--wait-seconds", "0")


def test_a_drain_is_done_when_the_flow_has_ended_by_itself(engine, run, holder):
    come_up(engine, driver := holder("main"))

    def read_to_the_end() -> None:
        wait_until(lambda: orders.read(engine, "main", [FLOW]).of[FLOW].state == "draining", 30)
        orders.end_drain(engine, FLOW)
        driver.python.kill()

    thread = threading.Thread(target=read_to_the_end)
    thread.start()
    assert "stopped" in run("drain", "--driver", "main", *REASON)
    thread.join()


def test_an_alarm_is_taken_on_and_one_that_does_not_exist_is_not(engine, run):
    with pytest.raises(NotDone, match="it has no alarm"):
        run("ack", FLOW, *REASON)
    with database.transaction(engine) as connection:
        incidents.begin(connection, FLOW, "STUCK", "why")
        incidents.begin(connection, "backfill 3", "JOB FAILED", "why")
    assert "acknowledged by" in run("ack", FLOW, *REASON, "--hours", "2")
    assert "acknowledged by" in run("ack", "job backfill 3", *REASON)
    with database.reading(engine) as connection:
        assert set(incidents.valid_acknowledgements(connection)) == {FLOW, "job backfill 3"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("restart",), "Missing option '--reason'"),
        (("restart", *REASON), "name a FLOW, or else --driver NAME"),
        (("stop", FLOW, "--driver", "main", *REASON), "and not both"),
        (("stop", "bronze.click", *REASON), "did you mean 'bronze.clicks'"),
        (("ack", "bronze.click", *REASON), "did you mean 'bronze.clicks'"),
        (("stop", "--driver", "other", *REASON), "--driver is 'other': there are main"),
        (("ack", FLOW, "--hours", "0", *REASON), "--hours is 0"),
    ],
)
def test_a_command_that_cannot_be_meant_is_refused_and_not_stored(engine, run, arguments, sentence: str):
    with pytest.raises(UsageError) as error:
        run(*arguments)
    assert sentence in str(error.value)
    assert audit(engine) == []


def test_a_command_that_was_not_followed_ends_with_an_exit_code_of_its_own():
    assert issubclass(NotDone, SluiceError)
    assert NotDone.exit_code == 1
