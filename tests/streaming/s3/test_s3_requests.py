"""What a batch and a look at a log ask of the store: docs/concepts/object-store-requests.md has the targets."""

from collections import Counter
from dataclasses import replace

import pytest

from include.settings import settings
from include.spec import Append
from tests.conftest import S3_PORT
from tests.support.commits import switch_fast_path
from tests.support.flows import Chain, only_in_full_runs
from tests.support.s3 import object_lake
from tests.support.topic import Topic

pytestmark = pytest.mark.skipif(object_lake.IS_USED, reason="the requests of other tests would count, too")

BATCHES = 5
RETAINED = "spark.sql.streaming.minBatchesToRetain"
# The most requests of a bronze batch with one record and of a silver batch with one row, together. Each of them deletes
# two files of its checkpoint.
TARGET = {"LIST": 3, "PUT": 10, "HEAD": 20, "GET": 13.5, "DELETE": 4}
# Spark's writers read the log of their table again for each batch, back to its last checkpoint.
TARGET_OF_SPARK = {"LIST": 5, "PUT": 11.5, "HEAD": 32, "GET": 28, "DELETE": 4}
# Of a batch of an aggregate, whose bucket lies in many files.
TARGET_OF_GOLD = {"LIST": 4, "PUT": 5, "HEAD": 9, "GET": 13.5, "DELETE": 2}
FILES = 20


@pytest.fixture(scope="module")
def access_log():
    with object_lake.running(S3_PORT) as log:
        yield log


@pytest.fixture
def chain(access_log, name, broker, monkeypatch):
    monkeypatch.setenv("SLUICE_LAKE", object_lake.new())
    settings.cache_clear()
    yield Chain(name, Topic(broker).create())
    monkeypatch.undo()
    settings.cache_clear()


@pytest.fixture
def short_history(spark):
    """Lets Spark delete files of checkpoints after two batches already, instead of a hundred."""
    spark.conf.set(RETAINED, 2)
    yield
    spark.conf.unset(RETAINED)


@pytest.mark.usefixtures("short_history")
@pytest.mark.parametrize(
    ("is_fast", "target", "batches"),
    [
        # So many that the few requests of a start which vary from run to run do not count.
        pytest.param(True, TARGET, 15, id="by the fast path"),
        pytest.param(False, TARGET_OF_SPARK, BATCHES, id="by Spark's writers", marks=only_in_full_runs),
    ],
)
def test_a_small_batch_asks_for_no_more_than_its_target(
    chain, run_once, access_log, monkeypatch, is_fast, target, batches
):
    switch_fast_path(monkeypatch, is_fast)
    bronze = replace(chain.bronze, source=replace(chain.bronze.source, max_offsets=1))
    silver = replace(chain.silver, source=replace(chain.silver.source, max_files=1), write=Append())

    def requests(records: int) -> Counter[str]:
        before = object_lake.requests(access_log)
        chain.topic.send(*range(records))
        run_once(bronze)
        run_once(silver)
        return object_lake.requests(access_log) - before

    requests(1)
    # The difference is that of the batches. The second start also reads the commits of the first one, by GET and HEAD.
    starts = requests(1)
    counts = requests(1 + batches)
    a_batch = {kind: (counts[kind] - starts[kind]) / batches for kind in target}
    assert {kind: count for kind, count in a_batch.items() if count > target[kind]} == {}
    chain.assert_silver_holds(chain.topic.messages())


@only_in_full_runs
@pytest.mark.usefixtures("short_history")
def test_an_aggregate_asks_for_each_file_of_its_bucket_once(chain, run_once, access_log, monkeypatch):
    switch_fast_path(monkeypatch, True)
    bronze = replace(chain.bronze, source=replace(chain.bronze.source, max_offsets=1))
    silver, gold = (replace(table, source=replace(table.source, max_files=1)) for table in (chain.silver, chain.gold))

    def requests(records: int) -> Counter[str]:
        chain.topic.send(*range(records))
        run_once(bronze)
        run_once(silver)
        before = object_lake.requests(access_log)
        run_once(gold)
        return object_lake.requests(access_log) - before

    requests(FILES)
    starts = requests(1)
    counts = requests(1 + BATCHES)
    a_batch = {kind: (counts[kind] - starts[kind]) / BATCHES for kind in TARGET_OF_GOLD}
    assert {kind: count for kind, count in a_batch.items() if count > TARGET_OF_GOLD[kind]} == {}
    chain.assert_holds(chain.topic.messages())
