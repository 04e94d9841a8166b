"""Paths of the lake in an object store do what paths of a disk do."""

import subprocess
import sys

import boto3
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from include.checkpoints import checkpoint_files
from include.delta import stored_table
from include.delta.delta_log import DeltaLog
from include.errors import Unreachable
from include.lake import clients, directories, locations
from include.lake.paths import names, remove_tree
from tests.conftest import ROOT, S3_PORT
from tests.support.s3 import object_lake


@pytest.fixture(scope="module")
def store():
    with object_lake.running(S3_PORT):
        yield


@pytest.fixture
def lake(store, own_settings):
    own_settings(SLUICE_LAKE=object_lake.new())
    return locations.lake()


@pytest.fixture(params=["disk", "store"])
def directory(request, tmp_path):
    return tmp_path if request.param == "disk" else request.getfixturevalue("lake")


def test_a_directory_holds_what_was_written_into_it_until_it_is_removed(directory):
    table = directory / "t"
    for name in ("day=2026-03-01 a%20b/part.parquet", "day=2026-03-02/part.parquet", "_delta_log/0.json"):
        file = table / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    log = table / "_delta_log"
    assert {*names(table)} == {path.name for path in table.iterdir()}
    assert {*names(table)} == {"_delta_log", "day=2026-03-01 a%20b", "day=2026-03-02"}
    found = {file.path: file.bytes for file in directories.files(table, lambda path: path.startswith("_"))}
    assert found == {"day=2026-03-01 a%20b/part.parquet": 33, "day=2026-03-02/part.parquet": 27}
    gone = [str(number) for number in range(30)]
    assert directories.missing(table, [*gone, "day=2026-03-02/part.parquet"]) == gone
    assert directories.missing(table, ["day=2026-03-02/part.parquet", "1"]) == ["1"]
    assert (log / "0.json").read_text() == "_delta_log/0.json"
    assert ((log / "0.json").exists(), log.is_dir(), (table / "1").is_dir()) == (True, True, False)
    with pytest.raises(FileNotFoundError):
        (table / "1").read_bytes()
    (table / "_delta_log" / "0.json").unlink()
    assert not (log / "0.json").exists()
    for _ in range(2):
        remove_tree(table)
        assert (names(table), table.is_dir()) == ([], False)


def test_a_generation_counts_only_when_it_is_complete(directory):
    with directories.new_directory(directory / "1") as first:
        (first / "owner.json").write_text("1")
    with pytest.raises(KeyboardInterrupt), directories.new_directory(directory / "2") as second:
        (second / "owner.json").write_text("died")
        raise KeyboardInterrupt
    assert checkpoint_files.newest_generation(directory) == 1
    with directories.new_directory(directory / "2") as second:
        assert names(second) == []
        (second / "owner.json").write_text("2")
    assert checkpoint_files.newest_generation(directory) == 2
    assert (directory / "2" / "owner.json").read_text() == "2"
    directories.withdraw(directory / "2")
    assert checkpoint_files.newest_generation(directory) == 1
    for unfinished in directories.unfinished(directory):
        directories.discard(unfinished)
    assert names(directory) == ["1"]


def test_the_objects_by_which_hadoop_marks_directories_are_no_files_and_go_with_them(lake):
    client = boto3.client("s3")
    for key in ("1/", "1/offsets/", "1/offsets/0", "1/sources/0/", "1/sources/0/0"):
        client.put_object(Bucket=lake.bucket, Key=f"{lake.key}/flow/{key}", Body=b"")
    home = lake / "flow"
    assert [file.path for file in directories.files(home)] == ["1/offsets/0", "1/sources/0/0"]
    remove_tree(home / "1")
    assert "Contents" not in client.list_objects_v2(Bucket=lake.bucket, Prefix=f"{lake.key}/flow/1/")
    assert checkpoint_files.newest_generation(home) is None


def test_a_stored_table_is_read_by_its_log_and_by_its_rows(lake):
    uri, options = clients.delta_rs(locations.table_path("silver.a"))
    for number in range(2):
        write_deltalake(uri, pa.table({"number": [number]}), mode="append", storage_options=options)
    stored_table.open_table("silver.a").create_checkpoint()
    log = DeltaLog(locations.table_path("silver.a"))
    assert (log.newest, sum(file.rows or 0 for file in log.state.live), [*log.checkpoints]) == (1, 2, [1])
    assert sorted(stored_table.dataset("silver.a").to_table()["number"].to_pylist()) == [0, 1]
    assert locations.is_stored("silver.a")
    assert not locations.is_stored("silver.b")
    assert stored_table.find_table("silver.b") is None
    with pytest.raises(Unreachable, match=r"^s3a://.*/silver/b holds no Delta log"):
        DeltaLog(locations.table_path("silver.b"))


def test_a_store_that_does_not_answer_and_a_bucket_that_does_not_exist_are_no_empty_lake(store, own_settings):
    own_settings(SLUICE_LAKE="s3a://no-such-bucket/lake")
    with pytest.raises(
        Unreachable, match=r"^the lake s3a://no-such-bucket/lake lies in a bucket that does not exist at http"
    ):
        locations.is_stored("silver.a")
    code = "from include.lake import locations; from include.delta import stored_table; "
    for call in ("locations.is_stored('silver.a')", "stored_table.find_table('silver.a')"):
        own_settings(AWS_ENDPOINT_URL="http://127.0.0.1:9")
        result = subprocess.run(
            [sys.executable, "-c", code + call], cwd=ROOT, capture_output=True, text=True, timeout=120
        )
        assert "include.errors.Unreachable: the lake s3a://no-such-bucket/lake cannot be used, because" in result.stderr
