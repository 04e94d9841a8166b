"""The store of the lake is away, slow or overloaded, loses answers or refuses credentials. No row is lost or doubled.

The default runs the faults one after the other, with a store that clients give up soon. `make faults` runs each on its
own, with the patience of a driver.
"""

import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select

from include import catalog
from include.airflow.supervisor import source_health
from include.catalog import Catalog
from include.cli import main as cli
from include.control.commands import Action
from include.control.flows.decide import State
from include.control.store import database
from include.control.store.schema import runs
from include.control.supervision import supervision
from include.delta.delta_log import Commit, DeltaLog
from include.errors import Unreachable
from include.lake import locations
from include.lake.paths import ObjectPath
from include.ledger import verify
from include.local.object_store import ObjectStore
from include.local.status import summary
from include.monitoring.status import rows, statuses
from include.settings import settings
from include.spec import Files, Flow, Table
from tests.conftest import free_port
from tests.support.commits import switch_fast_path
from tests.support.flows import FULL, Chain, Driver, only_in_full_runs, rows_of
from tests.support.s3 import store_faults
from tests.support.s3.bucket import Bucket, skip_without_store
from tests.support.s3.proxy import Refusal, Request, StoreProxy
from tests.support.s3.store_faults import COMMIT, DATA_FILE, END, PLAN
from tests.support.topic import Topic
from tests.support.waiting import sleep_through, wait_until

BUCKET, OTHER_BUCKET = "faults", "faults-elsewhere"
AWAY_SECONDS, DELAY_SECONDS = (60, 0.5) if FULL else (0, 0.02)
# Of S3A in short runs, where a request would otherwise take half a minute to fail.
SHORT_PATIENCE = {"retry.limit": "1", "retry.throttle.limit": "3"}
TIMEOUT = 600 if FULL else 120
ENDLESS = 10**9


@pytest.fixture(scope="module")
def proxy(spark) -> Iterator[StoreProxy]:
    """The way to a store that this process uses, Spark included."""
    skip_without_store()
    with (
        tempfile.TemporaryDirectory() as directory,
        ObjectStore(Path(directory), free_port()).running() as store,
        StoreProxy(store.port).running() as proxy,
        pytest.MonkeyPatch.context() as environment,
    ):
        variables = {**store.client_variables(), "AWS_ENDPOINT_URL": proxy.endpoint}
        for name, value in variables.items():
            environment.setenv(name, value)
        hadoop = spark._jsc.hadoopConfiguration()
        access = {"endpoint": proxy.endpoint, "access.key": variables["AWS_ACCESS_KEY_ID"]}
        access |= {"secret.key": variables["AWS_SECRET_ACCESS_KEY"], **({} if FULL else SHORT_PATIENCE)}
        for bucket in (BUCKET, OTHER_BUCKET):
            Bucket(store, bucket)
            for name, value in access.items():
                hadoop.set(f"fs.s3a.bucket.{bucket}.{name}", value)
        yield proxy


@pytest.fixture
def chain(proxy, name, broker, monkeypatch) -> Iterator[Chain]:
    """A chain of tables in an empty lake in that store."""
    monkeypatch.setenv("SLUICE_LAKE", f"s3a://{BUCKET}/{name}")
    settings.cache_clear()
    yield Chain(name, Topic(broker).create(2))
    monkeypatch.undo()
    settings.cache_clear()


class Platform:
    """A driver with the flows of bronze and silver, and what an operator sees of it."""

    def __init__(self, chain: Chain, driver: Driver, ask) -> None:
        self.chain, self.driver, self._ask, self._sent = chain, driver, ask, 0

    def send(self, count: int = 20) -> None:
        self.chain.topic.send(*range(self._sent, self._sent + count), "no number")
        self._sent += count

    def failures(self) -> dict[str, tuple[str, str]]:
        """Error class and sentence of each flow that has failed."""
        with database.transaction(self.driver.engine) as connection:
            failed = connection.execute(
                select(runs).where(runs.c.flow.in_(self.driver.tables), runs.c.failure.is_not(None))
            )
            return {run.flow: (run.error, run.failure) for run in failed}

    def wait_for_failure(self, error: str) -> None:
        """Wait until a flow fails. Every failure must be `error`, name the lake, and be tried again."""
        wait_until(self.failures, TIMEOUT)
        failures = self.failures()
        observed = supervision.preview(self.driver.engine, self.driver.name, list(self.driver.tables))
        for flow, (failed_with, sentence) in failures.items():
            assert failed_with == error, sentence
            assert sentence.startswith(f"the lake {settings().lake} cannot be used, because the store at http://")
            assert (observed[flow][1].state, sentence in observed[flow][1].reason) == (State.BACKING_OFF, True)

    def recover(self) -> None:
        """Wait until every row has arrived. In full runs, a supervisor starts what has failed, after its delays."""

        def has_arrived() -> bool:
            if FULL:
                supervision.settle(self.driver.engine, self.driver.name, list(self.driver.tables))
            else:
                for flow in self.failures():
                    self._ask(Action.RESTART, self.driver.tables[flow])
            return not self.failures() and rows(self.chain.silver.name) == self._sent

        wait_until(has_arrived, TIMEOUT, lambda: str(self.failures()), poll_seconds=0.5)

    def assert_each_row_is_there_once(self) -> None:
        messages = self.chain.topic.messages()
        self.chain.assert_bronze_holds(messages)
        self.chain.assert_silver_holds(messages)
        for table in (self.chain.bronze, self.chain.silver):
            verify.verify(table)
            batches = [commit.metadata["batch"] for commit in commits(table) if "batch" in commit.metadata]
            assert len(batches) == len({*batches})


def commits(table: Table) -> list[Commit]:
    return [*DeltaLog(locations.table_path(table.name)).commits()]


@pytest.fixture
def platform(chain: Chain, driver, ask) -> Iterator[Platform]:
    """A driver at work, whose flows have written a batch each."""
    tables = (replace(chain.bronze, interval_seconds=0.2), replace(chain.silver, interval_seconds=0.2))
    with driver(*tables) as running_driver:
        platform = Platform(chain, running_driver, ask)
        platform.send()
        platform.recover()
        yield platform


@contextmanager
def away(platform: Platform, proxy: StoreProxy) -> Iterator[None]:
    """The store refuses connections for a minute, and until a flow has failed."""
    with proxy.away():
        yield
        sleep_through(AWAY_SECONDS)
        platform.wait_for_failure("LAKE_UNREACHABLE")


@contextmanager
def expired(platform: Platform, proxy: StoreProxy) -> Iterator[None]:
    """The credentials expire while a batch writes its rows."""
    with store_faults.credentials_expired(proxy, DATA_FILE):
        yield
        platform.wait_for_failure("LAKE_ACCESS")


@contextmanager
def slow(platform: Platform, proxy: StoreProxy) -> Iterator[None]:
    with store_faults.slow(proxy, DELAY_SECONDS):
        yield
        platform.recover()


@contextmanager
def overloaded(platform: Platform, proxy: StoreProxy) -> Iterator[None]:
    with store_faults.overloaded(proxy):
        yield
        platform.recover()


@contextmanager
def losing_answers(platform: Platform, proxy: StoreProxy) -> Iterator[None]:
    """The answer to each first PUT of a commit, of a file of rows and of a checkpoint's files is lost."""
    with store_faults.answers_lost(proxy, COMMIT, DATA_FILE, PLAN, END) as puts:
        yield
        platform.recover()
    for kind in (COMMIT, DATA_FILE, PLAN, END):
        assert any(kind.search(key) and count > 1 for key, count in puts.items()), puts


FAULTS = (away, expired, slow, overloaded, losing_answers)


def test_faults_of_the_store_have_a_name_and_no_row_is_lost_or_doubled(platform, proxy, monkeypatch):
    for fault in (losing_answers, away, expired, overloaded):
        with fault(platform, proxy):
            platform.send()
        # For the flow that the fault has ended, and that starts again.
        switch_fast_path(monkeypatch, False)
        platform.recover()
    platform.assert_each_row_is_there_once()


@only_in_full_runs
@pytest.mark.parametrize("is_fast", [True, False], ids=["fast path", "Spark"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_of_the_store_costs_time_and_nothing_else(request, proxy, monkeypatch, fault, is_fast):
    switch_fast_path(monkeypatch, is_fast)
    platform = request.getfixturevalue("platform")
    for _ in range(3):
        with fault(platform, proxy):
            platform.send()
        platform.recover()
    platform.assert_each_row_is_there_once()


@only_in_full_runs
@pytest.mark.parametrize("is_fast", [True, False], ids=["fast path", "Spark"])
def test_a_commit_that_was_given_up_although_the_store_has_it_is_not_made_again(
    chain, proxy, run_once, monkeypatch, is_fast
):
    switch_fast_path(monkeypatch, is_fast)
    chain.topic.send(1, "x")
    run_once(chain.bronze, chain.silver)
    chain.topic.send(2, "y")
    if not FULL:
        run_once(chain.bronze)
    for table in (chain.bronze, chain.silver) if FULL else (chain.silver,):
        commit = re.compile(rf"/{table.name.replace('.', '/')}{COMMIT.pattern}")
        lost = store_faults.answers_lost(proxy, commit, tries=ENDLESS, reads=True)
        with lost as puts, pytest.raises(Unreachable) as outage:
            run_once(table)
        assert (outage.value.error, len(puts)) == ("LAKE_UNREACHABLE", 1)
        made = commits(table)
        assert made[0].metadata["batch"] == 1
        run_once(table)
        assert commits(table) == made
        verify.verify(table)
    chain.assert_bronze_holds(chain.topic.messages())
    chain.assert_silver_holds(chain.topic.messages())


def test_while_the_store_is_away_every_command_says_so_in_one_sentence(
    chain, proxy, run_once, engine, monkeypatch, capsys
):
    chain.topic.send(1, "x")
    run_once(chain.bronze, chain.silver)
    tables = Catalog({table.name: table for table in (chain.bronze, chain.silver)})
    monkeypatch.setattr(catalog, "load", lambda: tables)
    sentence = f"the lake {settings().lake} cannot be used, because the store at {proxy.endpoint} does not answer"
    with proxy.away():
        for command in ("verify", "quarantine", *(("plan", "inspect", "expectations") if FULL else ())):
            monkeypatch.setattr(sys, "argv", ["ledger", command, chain.silver.name])
            with pytest.raises(Unreachable, match=f"^{sentence}.*: start it, or correct AWS_ENDPOINT_URL$"):
                cli.main()
        with pytest.raises(Unreachable, match=f"^{sentence}"):
            summary()
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["ledger", "status"])
        cli.main()
        assert capsys.readouterr().out.count(sentence) == 1
        health = source_health.look(engine, tables)
        assert all(source.waits_for.startswith(sentence) for source in health.values())
    assert all(seen.lag.is_up_to_date for seen in statuses(tables))


def test_a_folder_outside_the_lake_is_named_by_its_own_path_and_its_files_stay_unread(chain, proxy, run_once):
    folder = f"{OTHER_BUCKET}/landing/{chain.name}"
    table = Flow(name=f"bronze.{chain.name}", comment="as it came", source=Files(f"s3a://{folder}", format="csv"))
    ObjectPath(OTHER_BUCKET, f"landing/{chain.name}/good.csv").write_text("number\n1\n")

    def refuse(request: Request) -> Refusal | None:
        is_read_by_spark = request.method == "GET" and "Hadoop" in request.client
        return Refusal(403, "AccessDenied") if is_read_by_spark and folder in request.path else None

    with store_faults.refusing(proxy, refuse), pytest.raises(Unreachable) as refusal:
        run_once(table)
    assert refusal.value.error == "SOURCE_ACCESS"
    assert re.match(rf"s3a://{folder}\S* cannot be used, because the store at http", str(refusal.value))
    run_once(table)
    assert ([row["number"] for row in rows_of(table.name)], rows_of(table.quarantine)) == (["1"], [])
