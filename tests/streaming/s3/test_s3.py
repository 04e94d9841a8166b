"""Flows read files in an S3 bucket with the same guarantees as files in a local folder."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import boto3
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from moto.server import ThreadedMotoServer

from include.engine import session
from include.errors import Unreachable, UsageError
from include.monitoring import status
from tests.conftest import S3_PORT
from tests.support.flows import only_in_full_runs
from tests.support.landing import Landing
from tests.support.s3 import object_lake

BUCKET = "landing-of-tests"


@pytest.fixture(scope="module")
def store() -> Iterator[ThreadedMotoServer]:
    """An S3 server of the test at AWS_ENDPOINT_URL."""
    server = ThreadedMotoServer("127.0.0.1", S3_PORT, verbose=False)
    if not object_lake.IS_USED:
        server.start()
    boto3.client("s3").create_bucket(Bucket=BUCKET)
    yield server
    if not object_lake.IS_USED:
        server.stop()


@dataclass(frozen=True)
class S3Landing(Landing):
    client: Any = None

    @property
    def path(self) -> str:
        return f"s3a://{BUCKET}/{self.name}"

    def put(self, file: str, content: bytes | str) -> None:
        self.client.put_object(Bucket=BUCKET, Key=f"{self.name}/{file}", Body=content)


@pytest.fixture
def landing(name, store) -> S3Landing:
    return S3Landing(name, boto3.client("s3"))


def as_parquet(**columns) -> bytes:
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()


def test_each_object_is_read_once_also_late_ones_and_oddly_named_ones(landing, run_once):
    odd_key = "2019/a b+%20&\u00e9=1.csv"
    landing.put("2019-08-05_transactions.csv", "date,amount\n2019-08-05,-55.29\n2019-08-05,-10.00\n")
    landing.put(odd_key, 'date,amount\n2019-08-06,"1\n2"\n')
    landing.put("empty.csv", "")
    landing.put("_hidden.csv", "date,amount\nx,y\n")
    table = landing.table()
    run_once(table)
    landing.put("2019-08-04_transactions.csv", "date,amount,place\n2019-08-04,500.00,Bern\n")
    assert status.lag(table) == "1 files"
    run_once(table)
    assert landing.rows() == {
        "2019-08-04_transactions.csv": [{"date": "2019-08-04", "amount": "500.00", "place": "Bern"}],
        "2019-08-05_transactions.csv": [
            {"date": "2019-08-05", "amount": "-55.29"},
            {"date": "2019-08-05", "amount": "-10.00"},
        ],
        odd_key: [{"date": "2019-08-06", "amount": "1\n2"}],
    }
    assert status.lag(table) == "0 files"


@only_in_full_runs
def test_hundreds_of_objects_at_once_are_read_once_each(landing, run_once):
    for number in range(300):
        landing.put(f"{number}.json", f'{{"a": {number}}}\n')
    run_once(landing.table("json", max_files=200))
    assert landing.rows() == {f"{number}.json": [{"a": str(number)}] for number in range(300)}


@only_in_full_runs
def test_an_object_that_is_cut_off_is_named_and_stops_no_other(landing, run_once):
    content = as_parquet(a=[1, 2])
    landing.put("good.parquet", content)
    landing.put("cut.parquet", content[:-10])
    landing.put("rotten.parquet", content[:4] + bytes(40) + content[44:])
    run_once(landing.table("parquet"))
    assert landing.rows() == {"good.parquet": [{"a": 1}, {"a": 2}]}
    assert landing.quarantined() == [("cut.parquet", "unreadable"), ("rotten.parquet", "unreadable")]


@pytest.mark.skipif(object_lake.IS_USED, reason="the lake lies there, too")
def test_a_store_that_does_not_answer_is_no_empty_folder(landing, store, run_once):
    landing.put("a.csv", "a\n1\n")
    table = landing.table()
    store.stop()
    try:
        with pytest.raises(Unreachable, match=f"^s3a://{BUCKET}/{landing.name} cannot be used, because the store"):
            run_once(table)
    finally:
        store.start()
    run_once(table)
    assert landing.rows() == {"a.csv": [{"a": "1"}]}


def test_a_driver_without_the_connector_says_how_to_come_by_it(landing, run_once, monkeypatch):
    monkeypatch.setattr(session, "S3A", "nowhere.S3AFileSystem")
    with pytest.raises(UsageError, match=rf"^s3a://{BUCKET}/.* lies on S3, .*: run `make s3`, and start it again$"):
        run_once(landing.table())
