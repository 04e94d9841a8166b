"""Two processes commit to one table on S3. Of two commits of a version, the store refuses the later one."""

import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from include.local.object_store import ObjectStore
from tests.conftest import free_port
from tests.support.flows import only_in_full_runs
from tests.support.s3.bucket import Bucket, process_environment, skip_without_store
from tests.support.s3.proxy import Request, StoreProxy
from tests.support.waiting import wait_until

VERSIONS = 3_000
LOCKED_VERSIONS = 300
FIRST_COMMIT = f"_delta_log/{1:020}.json"


class Committer:
    """A process with a Spark session of its own, tests/support/jobs/committer.py.

    committed: the file and the version of each commit that Delta reported as successful, in the last race.
    """

    def __init__(self, name: str, variables: dict[str, str]) -> None:
        self.committed: list[tuple[str, int]] = []
        self.is_idle = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.jobs.committer", name],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def race(self, url: str, commits: int, kind: str) -> None:
        self.committed, self.is_idle = [], False
        self._process.stdin.write(f"{url} {commits} {kind}\n")
        self._process.stdin.flush()

    def wait(self, timeout_seconds: float) -> None:
        wait_until(lambda: self.is_idle or self._process.poll() is not None, timeout_seconds)
        assert self._process.poll() is None

    def end(self) -> None:
        with self._process:
            self._process.stdin.close()
            self._reader.join()

    def _read(self) -> None:
        for line in self._process.stdout:
            match line.split():
                case ["ready"] | ["done"]:
                    self.is_idle = True
                case [file, version]:
                    self.committed.append((file, int(version)))


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    skip_without_store()
    with tempfile.TemporaryDirectory() as directory, ObjectStore(Path(directory), free_port()).running() as store:
        yield Bucket(store, "race")


@pytest.fixture(scope="module")
def proxy(bucket: Bucket) -> Iterator[StoreProxy]:
    with StoreProxy(bucket.store.port).running() as proxy:
        yield proxy


@pytest.fixture(scope="module")
def committers(bucket: Bucket, proxy: StoreProxy) -> Iterator[tuple[Committer, Committer]]:
    """Two processes. The first one reaches the store through the proxy."""
    variables = process_environment(bucket.store)
    first = Committer("first", {**variables, "AWS_ENDPOINT_URL": proxy.endpoint})
    second = Committer("second", variables)
    for committer in (first, second):
        committer.wait(300)
    yield first, second
    for committer in (first, second):
        committer.end()


@pytest.fixture(autouse=True)
def quiet_proxy(proxy: StoreProxy) -> None:
    proxy.requests.clear()
    proxy.before, proxy.loses = lambda request: None, lambda request: False


@pytest.fixture
def table(bucket: Bucket, request: pytest.FixtureRequest) -> str:
    return new_table(bucket, request.node.name)


def new_table(bucket: Bucket, table: str) -> str:
    """Create a table with a version 0, and as few checkpoints as Sluice's tables have. Returns its key."""
    properties = {"delta.checkpointInterval": "100"}
    rows = pa.table({"number": [1]})
    write_deltalake(f"s3://{bucket.name}/{table}", rows, storage_options=bucket.options, configuration=properties)
    return table


def lost_commits(bucket: Bucket, table: str, *committers: Committer) -> list[tuple[str, int]]:
    """The commits that Delta reported as successful, but whose version holds another commit."""
    files = [{action["add"]["path"] for action in actions if "add" in action} for actions in bucket.commits(table)]
    committed = [commit for committer in committers for commit in committer.committed]
    return [(file, version) for file, version in committed if file not in files[version]]


def hold_first_commit(proxy: StoreProxy) -> tuple[threading.Event, threading.Event]:
    """Make each PUT of version 1 wait, also when sent again. Returns two events: it has arrived, and it may go on."""
    arrived, may_go_on = threading.Event(), threading.Event()

    def hold(request: Request) -> None:
        if request.puts(FIRST_COMMIT):
            arrived.set()
            may_go_on.wait(120)

    proxy.before = hold
    return arrived, may_go_on


def assert_holds(bucket: Bucket, table: str, committers: tuple[Committer, ...], versions: int) -> None:
    """Assert that these commits, each reported once, are the versions 1 to `versions`, and that all are in the log."""
    assert not lost_commits(bucket, table, *committers)
    reported = sorted(version for committer in committers for _, version in committer.committed)
    assert reported == list(range(1, versions + 1))
    commits = bucket.commits(table)
    assert len(commits) == versions + 1
    # A committer that lost an answer recognizes its commit by this id.
    ids = {action["commitInfo"]["txnId"] for actions in commits[1:] for action in actions if "commitInfo" in action}
    assert len(ids) == versions


@only_in_full_runs
def test_two_processes_that_race_for_each_version_lose_none(bucket, proxy, committers, table):
    for committer in committers:
        committer.race(bucket.url(table), VERSIONS // 2, "free")
    for committer in committers:
        committer.wait(5 * VERSIONS + 300)
    assert_holds(bucket, table, committers, VERSIONS)
    tries = [request for request in proxy.requests if "/_delta_log/" in request.path and request.puts(".json")]
    assert {request.if_none_match for request in tries} == {"*"}
    late = len(tries) - len(committers[0].committed)
    print(f"{VERSIONS:,} versions; of {len(tries):,} commits of the first process, {late:,} came late")
    assert late > 0


def test_a_late_commit_fails_by_itself_and_is_made_again_as_the_next_version(bucket, proxy, committers, table):
    first, second = committers
    arrived, may_go_on = hold_first_commit(proxy)
    first.race(bucket.url(table), 1, "free")
    assert arrived.wait(60)
    second.race(bucket.url(table), 1, "free")
    second.wait(60)
    may_go_on.set()
    first.wait(60)
    assert (first.committed, second.committed) == ([("first-0", 2)], [("second-0", 1)])
    assert_holds(bucket, table, committers, 2)


def test_a_commit_whose_answer_is_lost_is_made_once(bucket, proxy, committers, table):
    first, _ = committers
    lost: list[Request] = []

    def loses(request: Request) -> bool:
        is_lost = request.puts(FIRST_COMMIT) and len(lost) < 2
        lost.extend([request] * is_lost)
        return is_lost

    proxy.loses = loses
    first.race(bucket.url(table), 2, "free")
    first.wait(120)
    assert len(lost) == 2
    assert first.committed == [("first-0", 1), ("first-1", 2)]
    assert_holds(bucket, table, (first,), 2)


@only_in_full_runs
def test_a_late_commit_of_spark_is_made_again_after_one_of_delta_rs(bucket, proxy, committers, table):
    first, _ = committers
    arrived, may_go_on = hold_first_commit(proxy)
    first.race(bucket.url(table), 1, "free")
    assert arrived.wait(60)
    write_deltalake(
        f"s3://{bucket.name}/{table}", pa.table({"number": [2]}), mode="append", storage_options=bucket.options
    )
    may_go_on.set()
    first.wait(60)
    assert first.committed == [("first-0", 2)]
    assert not lost_commits(bucket, table, first)
    [_, actions, _] = bucket.commits(table)
    assert any("add" in action for action in actions)


@only_in_full_runs
def test_a_late_commit_of_delta_rs_is_made_again_after_one_of_spark(bucket, proxy, committers, table):
    _, second = committers
    arrived, may_go_on = hold_first_commit(proxy)
    options = {**bucket.options, "AWS_ENDPOINT_URL": proxy.endpoint}
    writer = threading.Thread(
        target=write_deltalake,
        args=(f"s3://{bucket.name}/{table}", pa.table({"number": [2]})),
        kwargs={"mode": "append", "storage_options": options},
    )
    writer.start()
    assert arrived.wait(60)
    second.race(bucket.url(table), 1, "free")
    second.wait(60)
    may_go_on.set()
    writer.join(60)
    assert second.committed == [("second-0", 1)]
    assert not lost_commits(bucket, table, second)
    [_, _, actions] = bucket.commits(table)
    assert any("add" in action for action in actions)


@only_in_full_runs
def test_without_the_header_a_late_commit_overwrites_the_version_of_another_process(bucket, proxy, committers, table):
    _, second = committers
    setting = "spark.hadoop.fs.s3a.create.conditional.enabled=false"
    unsafe = Committer(
        "unsafe",
        {
            **process_environment(bucket.store),
            "AWS_ENDPOINT_URL": proxy.endpoint,
            "PYSPARK_SUBMIT_ARGS": f"--conf {setting} pyspark-shell",
        },
    )
    try:
        unsafe.wait(300)
        arrived, may_go_on = hold_first_commit(proxy)
        unsafe.race(bucket.url(table), 1, "free")
        assert arrived.wait(60)
        second.race(bucket.url(table), 1, "free")
        second.wait(60)
        may_go_on.set()
        unsafe.wait(60)
    finally:
        unsafe.end()
    assert (unsafe.committed, second.committed) == ([("unsafe-0", 1)], [("second-0", 1)])
    assert lost_commits(bucket, table, unsafe, second) == [("second-0", 1)]


@only_in_full_runs
def test_two_processes_that_take_turns_under_the_lock_never_come_late(bucket, proxy, committers, table):
    first, _ = committers
    for committer in committers:
        committer.race(bucket.url(table), LOCKED_VERSIONS // 2, "locked")
    for committer in committers:
        committer.wait(5 * LOCKED_VERSIONS + 300)
    assert_holds(bucket, table, committers, LOCKED_VERSIONS)
    tries = [request for request in proxy.requests if "/_delta_log/" in request.path and request.puts(".json")]
    assert len(tries) == len(first.committed)
