"""The local S3 store decides who of several writers creates an object."""

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from botocore.exceptions import ClientError

from include.errors import SetupError
from include.local import install, object_store
from include.local.object_store import ObjectStore
from include.settings import settings
from tests.conftest import free_port
from tests.support.s3.bucket import Bucket, skip_without_store

WRITERS = 16


def test_of_many_writers_that_create_an_object_at_once_one_succeeds(tmp_path: Path):
    skip_without_store()
    with ObjectStore(tmp_path, free_port()).running() as store, ThreadPoolExecutor(WRITERS) as pool:
        bucket = Bucket(store, "race")
        for number in range(10):
            barrier = Barrier(WRITERS)

            def create(writer: int, key: str = f"log/{number}.json", barrier: Barrier = barrier) -> str:
                barrier.wait()
                try:
                    bucket.client.put_object(Bucket="race", Key=key, Body=str(writer).encode(), IfNoneMatch="*")
                except ClientError as error:
                    return str(error.response["Error"]["Code"])
                return "created"

            answers = list(pool.map(create, range(WRITERS)))
            assert Counter(answers) == {"created": 1, "PreconditionFailed": WRITERS - 1}
            stored = bucket.client.get_object(Bucket="race", Key=f"log/{number}.json")["Body"].read()
            assert stored == str(answers.index("created")).encode()


def test_a_store_keeps_its_objects_and_its_credentials_through_a_restart(tmp_path: Path):
    with ObjectStore(tmp_path, free_port()).running() as store:
        Bucket(store, "lake").client.put_object(Bucket="lake", Key="a", Body=b"1")
    with ObjectStore(tmp_path, free_port()).running() as store:
        assert Bucket(store, "lake").client.get_object(Bucket="lake", Key="a")["Body"].read() == b"1"
        secret = store.client_variables()["AWS_SECRET_ACCESS_KEY"]
        assert not any(secret in argument for argument in store.command())


def test_make_status_reaches_the_store_that_make_up_has_prepared(
    home: Path, own_settings, monkeypatch: pytest.MonkeyPatch
):
    own_settings(SLUICE_S3_PORT="9411")
    config = settings()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of the shell")
    object_store.use_declared(config)
    assert os.environ["AWS_ACCESS_KEY_ID"] == "of the shell"
    store = object_store.declared(config)
    store.prepare()
    for name in store.client_variables():
        monkeypatch.setenv(name, "of the shell")
    object_store.use_declared(config)
    assert {name: os.environ[name] for name in store.client_variables()} == store.client_variables()


def test_a_machine_without_go_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(install, "venv", lambda: tmp_path)
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match="is built by Go, which is missing: install Go"):
        object_store.fetch()
