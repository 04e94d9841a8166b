"""The scan finds a subject in each kind of place, and says what it could not read."""

import base64
import gzip
import json
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from pyarrow import orc

from include.catalog import Catalog
from include.erasure.needles import Needles
from include.erasure.scan import Scan, scan, stored_table_of
from include.settings import settings

SUBJECT = "user-4711"
OTHERS = ["user-1", "another user"]
# A key that contains the subject's. Only in the pages of a database nobody can tell where it ends.
LONGER = ["user-47110", "xuser-4711"]


@pytest.fixture
def home(tmp_path: Path, own_settings: Callable[..., None]) -> Path:
    """A home in which somebody else lies everywhere, and the subject nowhere."""
    own_settings(SLUICE_HOME=tmp_path / "home")
    home = settings().home
    for hide in HIDING_PLACES:
        hide(home / "lake" / "silver" / "others", OTHERS)
    return home


def result() -> Scan:
    return scan(Needles([SUBJECT]), Catalog({}))


def table_of(names: list[str]) -> pa.Table:
    return pa.table({"name": names, "n": range(len(names))})


def in_parquet(place: Path, names: list[str]) -> None:
    write(place / "dictionary.parquet", b"")
    repeated = [*names, *("x" * 40 for _ in range(5000)), *names]
    parquet.write_table(table_of(repeated), place / "dictionary.parquet", compression="zstd")


def in_parquet_without_statistics(place: Path, names: list[str]) -> None:
    write(place / "plain.parquet", b"")
    options = {"compression": "gzip", "use_dictionary": False, "write_statistics": False}
    parquet.write_table(table_of(names), place / "plain.parquet", **options)


def in_nested_columns(place: Path, names: list[str]) -> None:
    write(place / "nested.parquet", b"")
    maps = pa.array([[("k", name)] for name in names], pa.map_(pa.string(), pa.string()))
    nested = pa.array([{"deep": [{"name": name.encode()}]} for name in names])
    parquet.write_table(pa.table({"m": maps, "s": nested}), place / "nested.parquet", compression="snappy")


def in_a_payload_in_base64(place: Path, names: list[str]) -> None:
    write(place / "payload.parquet", b"")
    payloads = [base64.b64encode(json.dumps({"id": name}).encode()).decode() for name in names]
    parquet.write_table(pa.table({"value": payloads}), place / "payload.parquet", compression="zstd")


def in_statistics_of_the_log(place: Path, names: list[str]) -> None:
    lines = [{"add": {"path": "x", "stats": json.dumps({"minValues": {"name": name}})}} for name in names]
    write(place / "_delta_log" / "00000000000000000001.json", "\n".join(map(json.dumps, lines)).encode())


def in_statistics_of_a_checkpoint(place: Path, names: list[str]) -> None:
    write(place / "_delta_log" / "00000000000000000010.checkpoint.parquet", b"")
    stats = [json.dumps({"maxValues": {"name": name}}) for name in names]
    adds = pa.array([{"path": "x", "stats": text} for text in stats])
    parquet.write_table(pa.table({"add": adds}), place / "_delta_log" / "00000000000000000010.checkpoint.parquet")


def in_a_change_feed(place: Path, names: list[str]) -> None:
    in_parquet(place / "_change_data", names)


def in_packed_json(place: Path, names: list[str]) -> None:
    write(place / "part.json.gz", gzip.compress(json.dumps(names).encode()))


def in_zstd(place: Path, names: list[str]) -> None:
    write(place / "part.zst", b"")
    with pa.CompressedOutputStream(str(place / "part.zst"), "zstd") as packed:
        packed.write(json.dumps(names).encode())


def in_orc(place: Path, names: list[str]) -> None:
    write(place / "part.orc", b"")
    orc.write_table(table_of(names), str(place / "part.orc"), compression="zlib")


def in_state_of_a_checkpoint(place: Path, names: list[str]) -> None:
    data = "\0".join(names).encode()
    packed = pa.Codec("lz4_raw").compress(data, asbytes=True)
    sizes = len(packed).to_bytes(4, "little") + len(data).to_bytes(4, "little")
    write(place / "state" / "0" / "1.delta", b"LZ4Block" + bytes([0x26]) + sizes + bytes(4) + packed)


def in_a_database(place: Path, names: list[str]) -> None:
    with database_at(place / "rows.db", names):
        pass


def in_a_long_value_of_a_database(place: Path, names: list[str]) -> None:
    with database_at(place / "long.db", [f"{'x' * 4090}{name}{'y' * 5000}" for name in (f" {n} " for n in names)]):
        pass


def in_deleted_rows_of_a_database(place: Path, names: list[str]) -> None:
    with database_at(place / "deleted.db", names) as database:
        database.execute("PRAGMA secure_delete = OFF")
        database.execute("DELETE FROM t WHERE name > ''")


def in_the_write_ahead_log_of_a_database(place: Path, names: list[str]) -> None:
    database = database_at(place / "wal.db", [])
    database.execute("PRAGMA journal_mode = WAL")
    database.executemany("INSERT INTO t VALUES (?)", [(name,) for name in names])
    database.commit()
    written = (place / "wal.db-wal").read_bytes()
    database.close()
    write(place / "wal.db-wal", written)


def in_a_log(place: Path, names: list[str]) -> None:
    write(place / "driver.log", f"12:00 INFO batch 3 failed for {', '.join(names)}\n".encode())


def in_the_url_of_a_log(place: Path, names: list[str]) -> None:
    write(place / "access.log.1", "".join(f"GET /?q=%22{name}%22\n" for name in names).encode())


def in_hexadecimal_digits(place: Path, names: list[str]) -> None:
    write(place / "key.json", json.dumps([name.encode().hex() for name in names]).encode())


def in_the_name_of_a_folder(place: Path, names: list[str]) -> None:
    for name in names:
        write(place / f"user={name}" / "part.bin", b"x")


def in_an_orphan_file(place: Path, names: list[str]) -> None:
    write(place / ".part-0.parquet.crc.tmp", b"\xff".join(name.encode() for name in names))


HIDING_PLACES = [function for name, function in list(globals().items()) if name.startswith("in_")]


def write(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def database_at(file: Path, names: list[str]) -> sqlite3.Connection:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    database = sqlite3.connect(file)
    database.execute("CREATE TABLE t (name)")
    database.executemany("INSERT INTO t VALUES (?)", [(name,) for name in names])
    database.commit()
    return database


def test_a_scan_without_hits_has_read_all(home):
    found = result()
    assert (found.hits, found.unread) == ({}, {})
    assert found.objects >= len(HIDING_PLACES)
    assert found.bytes > 0


@pytest.mark.parametrize("hide", HIDING_PLACES)
def test_a_subject_is_found_in_each_kind_of_place(home, hide):
    for place in ("lake/silver/t", "tmp", "checkpoints/silver.t/1"):
        hide(home / place, ["somebody", SUBJECT])
        assert any(hit.startswith(f"home/{place}/") for hit in result().hits), place


@pytest.mark.parametrize("hide", HIDING_PLACES)
def test_a_longer_key_is_somebody_else(home, hide):
    if "database" in hide.__name__ or hide in (in_state_of_a_checkpoint, in_an_orphan_file):
        pytest.skip("bytes without borders")
    hide(home / "lake" / "silver" / "t", LONGER)
    assert result().hits == {}


def test_a_temporary_file_is_waited_for_and_another_one_is_not(home):
    shuffle, other = settings().temporary / "process-1" / "shuffle_0", home / "log" / "driver.log"
    for file in (shuffle, other):
        write(file, SUBJECT.encode())
    deletion = threading.Timer(1.5, shuffle.unlink)
    deletion.start()
    found = scan(Needles([SUBJECT]), Catalog({}), wait_seconds=60)
    deletion.join()
    assert found.hits == {"home/log/driver.log": 1}


def test_what_nobody_here_can_read_is_named(home):
    write(home / "checkpoints" / "f" / "state" / "1.sst", b"?")
    write(home / "lake" / "silver" / "t" / "torn.parquet", b"PAR1 torn")
    unread = result().unread
    assert set(unread) == {"home/checkpoints/f/state/1.sst", "home/lake/silver/t/torn.parquet"}


@pytest.mark.parametrize("folder", ["landing", "kafka/data", "erasure/requests", "jars"])
def test_what_others_own_is_not_scanned(home, folder):
    in_a_log(home / folder, [SUBJECT])
    assert not any(folder in place for place in result().hits)


def test_a_file_is_told_to_belong_to_its_table(home):
    in_statistics_of_the_log(home / "lake" / "silver" / "t", [])
    assert stored_table_of(home / "lake" / "silver" / "t" / "deep" / "x.parquet") == "silver.t"
    assert stored_table_of(home / "log" / "driver.log") is None
