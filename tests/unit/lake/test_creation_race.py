"""A store is trusted with concurrent commits only if a race for one object always has one winner."""

import uuid

import pytest

from include.lake import paths
from include.lake.paths import ObjectPath
from tests.support.s3.memory_store import MemoryStore


@pytest.fixture
def directory(monkeypatch) -> ObjectPath:
    """A directory in a bucket that no other test asks for, because the client keeps the address of each bucket."""
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    return ObjectPath(uuid.uuid4().hex, "lake")


def test_a_store_where_one_of_several_creations_succeeds_is_trusted(directory, monkeypatch):
    with MemoryStore(checks_early=False).running() as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
        assert paths.has_one_winner(directory)
    assert store.puts == paths.WRITERS * paths.ROUNDS
    assert store.objects == {}, "nothing of the question stays"


def test_a_store_that_checks_early_and_writes_late_is_refused(directory, monkeypatch):
    with MemoryStore(checks_early=True).running() as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
        probe = directory / "one-after-the-other"
        assert (probe.create(b"first"), probe.create(b"second")) == (True, False)
        assert not paths.has_one_winner(directory)
