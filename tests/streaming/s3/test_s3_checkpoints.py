"""Checkpoints in a store: a file is one PUT, which is there as a whole or not at all, and replaces none."""

import boto3
import pytest
from py4j.protocol import Py4JJavaError

from include.engine import session
from include.engine.session import jvm_of
from include.ledger import verify
from include.settings import settings
from tests.conftest import S3_PORT
from tests.support.flows import Chain
from tests.support.s3 import object_lake
from tests.support.s3.proxy import StoreProxy
from tests.support.topic import Topic


@pytest.fixture(scope="module")
def store():
    with object_lake.running(S3_PORT):
        yield


@pytest.fixture
def proxy(store):
    with StoreProxy(S3_PORT).running() as proxy:
        yield proxy


@pytest.fixture
def configuration(spark, proxy):
    """Hadoop's configuration, with a store that is reached through the proxy."""
    copy = jvm_of(spark).org.apache.hadoop.conf.Configuration(spark._jsc.hadoopConfiguration())
    copy.set("fs.s3a.endpoint", proxy.endpoint)
    copy.setBoolean("fs.s3a.impl.disable.cache", True)
    copy.set("fs.s3a.retry.interval", "10ms")
    copy.setInt("fs.s3a.paging.maximum", 100)
    return copy


@pytest.fixture
def path(spark, name):
    """The file of batch 7 in a new checkpoint."""
    return jvm_of(spark).org.apache.hadoop.fs.Path(f"s3a://{object_lake.BUCKET}/{name}/offsets/7")


@pytest.fixture
def create(spark, configuration, path):
    """`create("text")` writes the file as Spark does; `create("text", ends=False)` cancels that."""
    manager = jvm_of(spark).sluice.S3CheckpointFileManager(path.getParent(), configuration)

    def write(text: str, ends: bool = True) -> None:
        stream = manager.createAtomic(path, False)
        stream.write(bytearray(text.encode()))
        stream.close() if ends else stream.cancel()

    return write


def stored(path) -> str | None:
    client, key = boto3.client("s3"), path.toUri().getPath().lstrip("/")
    try:
        return client.get_object(Bucket=object_lake.BUCKET, Key=key)["Body"].read().decode()
    except client.exceptions.NoSuchKey:
        return None


def test_a_file_is_one_request_and_a_cancelled_one_is_none(create, proxy, path):
    create("half of", ends=False)
    assert (proxy.requests, stored(path)) == ([], None)
    create("batch 7")
    [request] = proxy.requests
    assert (request.method, request.if_none_match, stored(path)) == ("PUT", "*", "batch 7")


def test_of_two_drivers_that_write_a_batch_the_later_one_fails(create, path):
    create("by the first")
    with pytest.raises(Py4JJavaError, match="412"):
        create("by the second")
    assert stored(path) == "by the first"


def test_a_file_whose_answer_was_lost_is_written(create, proxy, path):
    lost = []

    def loses(request) -> bool:
        if request.puts("/7") and not lost:
            lost.append(request)
            return True
        return False

    proxy.loses = loses
    create("batch 7")
    assert (len(lost), sum(request.puts("/7") for request in proxy.requests), stored(path)) == (1, 2, "batch 7")


def test_a_file_that_the_store_refuses_is_an_error(spark, configuration):
    path = jvm_of(spark).org.apache.hadoop.fs.Path("s3a://no-such-bucket/offsets/7")
    manager = jvm_of(spark).sluice.S3CheckpointFileManager(path.getParent(), configuration)
    stream = manager.createAtomic(path, False)
    with pytest.raises(Py4JJavaError, match="NoSuchBucket"):
        stream.close()


def test_a_checkpoint_of_an_older_release_goes_on_and_back(store, spark, name, broker, run_once, monkeypatch):
    monkeypatch.setenv("SLUICE_LAKE", object_lake.new())
    settings.cache_clear()
    chain = Chain(name, Topic(broker).create())
    managers = [session.CONF[session.FILE_MANAGER], session.S3_CLASSES[session.FILE_MANAGER]]
    try:
        for number, manager in enumerate([*managers, managers[0]]):
            spark.conf.set(session.FILE_MANAGER, manager)
            chain.topic.send(number)
            run_once(chain.bronze)
        chain.assert_bronze_holds(chain.topic.messages())
        verify.verify(chain.bronze)
    finally:
        spark.conf.set(session.FILE_MANAGER, managers[1])
        monkeypatch.undo()
        settings.cache_clear()


def test_a_log_is_listed_from_a_version_on_however_long_it_is(spark, configuration, proxy, name):
    jvm, client = jvm_of(spark), boto3.client("s3")
    log = f"{name}/_delta_log"
    kinds = ("crc", "json")
    keys = [f"{log}/{version:020}.{kind}" for version in range(60) for kind in kinds]
    for key in (*keys, f"{log}/{50:020}.checkpoint.parquet", f"{log}/_last_checkpoint", f"{log}/_sidecars/x.parquet"):
        client.put_object(Bucket=object_lake.BUCKET, Key=key, Body=b"")

    def names(log_store: str, version: int) -> list[str]:
        path = jvm.org.apache.hadoop.fs.Path(f"s3a://{object_lake.BUCKET}/{log}/{version:020}.json")
        constructor = jvm.org.apache.spark.util.Utils.classForName(log_store, True, False).getConstructors()[0]
        arguments = spark.sparkContext._gateway.new_array(jvm.java.lang.Object, 1)
        arguments[0] = configuration
        entries = constructor.newInstance(arguments).listFrom(path, configuration)
        return [
            entry.getPath().getName() for entry in iter(lambda: entries.next() if entries.hasNext() else None, None)
        ]

    for version in (0, 1, 49, 50, 58, 59, 60):
        expected = names("io.delta.storage.S3SingleDriverLogStore", version)
        proxy.requests.clear()
        assert names("sluice.S3LogStore", version) == expected
        # A page has a hundred names.
        assert [request.method for request in proxy.requests] == ["GET"] * (1 if version > 20 else 2)
    with pytest.raises(Py4JJavaError, match="FileNotFoundException"):
        log = f"{name}/nowhere/_delta_log"
        names("sluice.S3LogStore", 3)
