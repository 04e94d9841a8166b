"""A driver is killed while it writes a batch's file of a checkpoint on S3."""

import boto3
import pytest

from include.lake import locations
from include.settings import from_environment
from tests.conftest import S3_PORT, free_port
from tests.support.flows import only_in_full_runs
from tests.support.pipeline import TABLES, pipeline_at, random_events
from tests.support.s3 import object_lake
from tests.support.s3.proxy import Request, StoreProxy
from tests.support.waiting import wait_until

pytestmark = only_in_full_runs


@pytest.fixture
def proxy(monkeypatch):
    """A proxy in front of the store of the test, through which all its processes reach it."""
    with object_lake.running(S3_PORT), StoreProxy(S3_PORT).running() as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        yield proxy


@pytest.mark.parametrize("directory", ["offsets", "commits"])
@pytest.mark.parametrize("is_stored", [False, True], ids=["before the store has it", "before the store has answered"])
def test_it_leaves_no_half_file_and_its_successor_loses_and_doubles_nothing(
    proxy, tmp_path, start_broker, directory, is_stored
):
    address = start_broker(tmp_path / "broker", free_port())
    pipeline = pipeline_at(tmp_path, address, {"SLUICE_LAKE": object_lake.new()})
    file = locations.checkpoints(TABLES[0], from_environment(pipeline.environment)) / "1" / directory / "1"
    # Not through the proxy, which the next test will not have.
    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{S3_PORT}")
    killed: list[Request] = []

    def kill(request: Request) -> bool:
        if killed or not request.puts(f"/{TABLES[0]}/1/{directory}/1"):
            return False
        killed.append(request)
        pipeline.kill(pipeline.submitted[-1], "both")
        return True

    def kill_before(request: Request) -> None:
        if kill(request):
            raise ConnectionAbortedError("the driver is dead, so its request ends")

    try:
        pipeline.produce(random_events(0, 500))
        pipeline.submit()
        wait_until(lambda: pipeline.count(TABLES[0]) > 0, 240, lambda: pipeline.log.read_text()[-3000:])
        proxy.before, proxy.loses = (proxy.before, kill) if is_stored else (kill_before, proxy.loses)
        pipeline.produce(random_events(1, 500))
        wait_until(lambda: bool(killed) and pipeline.submitted[-1].poll() is not None, 240)
        found = client.list_objects_v2(Bucket=file.bucket, Prefix=file.key)
        assert found["KeyCount"] == is_stored
        pipeline.submit()
        pipeline.wait_until_gold_is_right()
        pipeline.assert_nothing_lost_or_doubled()
        pipeline.assert_the_ledger_agrees()
    finally:
        pipeline.stop()
