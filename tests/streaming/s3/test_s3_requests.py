"""What a batch and a look at a log ask of the store: docs/architecture/object-store.md has the targets."""

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
# The most requests of a bronze batch with one record and of a silver batch with one row, together.
TARGET = {"LIST": 4, "PUT": 10, "HEAD": 20, "GET": 14.5, "DELETE": 0}
# Spark's writers read the log of their table again for each batch, back to its last checkpoint.
TARGET_OF_SPARK = {"LIST": 7, "PUT": 11.5, "HEAD": 45, "GET": 20, "DELETE": 0}


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


@pytest.mark.parametrize(
    ("is_fast", "target"),
    [
        pytest.param(True, TARGET, id="by the fast path"),
        pytest.param(False, TARGET_OF_SPARK, id="by Spark's writers", marks=only_in_full_runs),
    ],
)
def test_a_small_batch_asks_for_no_more_than_its_target(chain, run_once, access_log, monkeypatch, is_fast, target):
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
    counts = requests(1 + BATCHES)
    a_batch = {kind: (counts[kind] - starts[kind]) / BATCHES for kind in target}
    assert {kind: count for kind, count in a_batch.items() if count > target[kind]} == {}
    chain.assert_silver_holds(chain.topic.messages())
